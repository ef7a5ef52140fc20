/* Two things about the search that the theme does in another way.

A query loses its small words: the theme looks for each word as the beginning of a word, so the "a" of "run on a GPU"
would find every section with "add" or "attach" in it. The last word stays, because it may not be finished.

The index is loaded when the search is opened, and not with every page: the theme asks for it at once, and this holds
the request back. On pages opened from disk the request is a script that the theme appends to the head. */

(() => {
  const SMALL = new Set(
    ("a about an and are as at be by can do does for from has have how i if in into is it its me my no not of on or " +
      "so than that the then there this to was what when where which who why will with you").split(" "),
  );
  const QUERY = 2; // the theme's number for the message that holds a query
  const { postMessage } = Worker.prototype;

  function withoutSmall(query) {
    const parts = query.split(/\s+/).filter(Boolean);
    const kept = parts.filter((word, n) => n === parts.length - 1 || !SMALL.has(word.toLowerCase()));
    return kept.join(" ");
  }

  Worker.prototype.postMessage = function (message, ...others) {
    const asks = message?.type === QUERY && typeof message.data === "string";
    return postMessage.call(this, asks ? { ...message, data: withoutSmall(message.data) } : message, ...others);
  };

  const { open, send } = XMLHttpRequest.prototype;
  const held = [];
  let wanted = false;

  XMLHttpRequest.prototype.open = function (method, url, ...others) {
    this.isIndex = String(url).endsWith("search/search_index.json");
    return open.call(this, method, url, ...others);
  };
  XMLHttpRequest.prototype.send = function (...body) {
    if (this.isIndex && !wanted) held.push(() => send.apply(this, body));
    else send.apply(this, body);
  };

  if (location.protocol === "file:") {
    const { head } = document;
    head.appendChild = (node) => {
      const append = () => Node.prototype.appendChild.call(head, node);
      const isIndex = node.src?.endsWith("search/search_index.js");
      if (isIndex && !wanted) held.push(append);
      else append();
      return node;
    };
  }

  function release() {
    wanted = true;
    held.splice(0).forEach((go) => go());
  }
  const search = (event) => event.target.closest?.(".md-search, [for=__search], #__search") && release();
  for (const kind of ["focusin", "pointerdown", "change"]) addEventListener(kind, search, true);
  addEventListener("keydown", ({ key }) => ["f", "s", "/"].includes(key) && release(), true); // the theme's shortcuts
  const address = new URLSearchParams(location.search);
  if (address.has("q") || address.has("h")) release(); // a query, or words to mark on this page
})();
