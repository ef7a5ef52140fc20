/* A page is printed in the light scheme, whatever the reader reads it in, and with its answers unfolded. The lines of IR
that a comparison folds stay folded, and hints are left out (docs/styles/course.css). */

(() => {
  const ANSWERS = ".md-typeset details:not(.hint, .passes details, .ir-diff details)";
  let restore = () => {};

  function print() {
    const { dataset } = document.body;
    const scheme = dataset.mdColorScheme;
    const folded = [...document.querySelectorAll(`${ANSWERS}:not([open])`)];
    dataset.mdColorScheme = "default";
    folded.forEach((details) => (details.open = true));
    restore = () => {
      dataset.mdColorScheme = scheme;
      folded.forEach((details) => (details.open = false));
    };
  }

  matchMedia("print").addEventListener("change", ({ matches }) => (matches ? print() : restore()));
})();
