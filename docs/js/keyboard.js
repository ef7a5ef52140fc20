/* What scrolls can be scrolled with the keyboard: a block that overflows becomes a stop of the Tab key, with a name.

Blocks that do not overflow are no stop. The theme does the first for code on screens with a mouse only, and sideways
only; and it puts the buttons of every block into a landmark without a name, which is undone here. */

(() => {
  const NAMES = [
    [".md-typeset__scrollwrap", "Table, scrollable"],
    [".run-output pre > code", "Output, scrollable"],
    ["pre, pre > code", "Code, scrollable"],
    [".tabbed-labels", "Tabs, scrollable"],
  ];
  const SCROLLERS = [".ir-picture, .kernel-picture", ...NAMES.map(([selector]) => selector)].join(", ");
  const stops = new WeakSet();

  function isScrollable(element) {
    const style = getComputedStyle(element);
    const can = (overflow) => overflow === "auto" || overflow === "scroll";
    return (
      (can(style.overflowX) && element.scrollWidth > element.clientWidth) ||
      (can(style.overflowY) && element.scrollHeight > element.clientHeight)
    );
  }

  function updateStop(element, over = isScrollable(element)) {
    if (over) {
      if (element.getAttribute("tabindex") !== "0") element.setAttribute("tabindex", "0");
      if (stops.has(element)) return;
      stops.add(element);
      const named = NAMES.find(([selector]) => element.matches(selector));
      if (!named) return; // a picture has a role and a caption of its own
      element.setAttribute("role", "group");
      element.setAttribute("aria-label", named[1]);
    } else if (stops.delete(element)) {
      for (const name of ["tabindex", "role", "aria-label"]) element.removeAttribute(name);
    }
  }

  /* all are measured before one is changed: after a change the browser would have to lay out the page again */
  const resized = new ResizeObserver((entries) =>
    entries.map(({ target }) => [target, isScrollable(target)]).forEach(([target, over]) => updateStop(target, over)),
  );

  function observeScrollers(root) {
    const all = (selector) => [
      ...(root.matches(selector) ? [root] : []),
      ...root.querySelectorAll(selector),
    ];
    all(SCROLLERS).forEach((element) => resized.observe(element));
    all("nav.md-code__nav").forEach((nav) => nav.setAttribute("role", "none"));
  }

  function handleMutation({ type, target, addedNodes }) {
    if (type === "attributes") {
      if (stops.has(target)) updateStop(target); // the theme has taken the stop away
    } else {
      addedNodes.forEach((node) => node instanceof Element && observeScrollers(node));
    }
  }

  observeScrollers(document.body);
  new MutationObserver((records) => records.forEach(handleMutation)).observe(document.body, {
    attributeFilter: ["tabindex"],
    childList: true,
    subtree: true,
  });
})();
