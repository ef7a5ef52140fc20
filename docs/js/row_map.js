/* A map of the rows of a result (docs/webgpu.md): a cell per row, darker where the row is further off. A line says which
rows are wrong, and how far the worst is off, which is marked. */

(() => {
  const MOST = 6; // runs of wrong rows that are named
  const NAMESPACE = "http://www.w3.org/2000/svg";
  // [class, what the legend says, the largest error as a share of the row's largest value]
  const LEVELS = [
    ["right", "right", 0],
    ["little", "off by up to 1 %", 0.01],
    ["some", "off by up to 10 %", 0.1],
    ["much", "off by up to 100 %", 1],
    ["wild", "off by more than 100 %", Infinity],
    ["lost", "with elements that are not a number", NaN],
  ];

  const levelOf = (off) =>
    Number.isNaN(off) ? LEVELS.length - 1 : LEVELS.findIndex(([, , largest]) => off <= largest);

  const make = (tag, attributes = {}, ...children) => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  };

  const drawn = (tag, attributes) => {
    const element = document.createElementNS(NAMESPACE, tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    return element;
  };

  const says = (row, off) => {
    if (off === 0) return `Row ${row} is right.`;
    if (Number.isNaN(off)) return `Row ${row} has elements that are not a number.`;
    const share = 100 * off >= 0.1 ? (100 * off).toPrecision(3) : (100 * off).toExponential(1);
    return `Row ${row} is off by up to ${share} % of its largest value.`;
  };

  /** The rows in words, such as "0 to 15, 32"; beyond MOST runs of neighbours, the first of them. */
  function runs(rows) {
    const found = [];
    for (const row of rows) {
      if (found.length && found.at(-1)[1] === row - 1) found.at(-1)[1] = row;
      else found.push([row, row]);
    }
    const told = found.slice(0, MOST).map(([first, last]) => (first === last ? `${first}` : `${first} to ${last}`));
    return `${told.join(", ")}${found.length > MOST ? ", …" : ""}`;
  }

  /** Draw the map in `place`. offs: for each row, how far it is off: 0 if it is right, NaN if elements are not numbers. */
  function draw(place, offs) {
    const columns = Math.ceil(Math.sqrt(offs.length)),
      lines = Math.ceil(offs.length / columns);
    const levels = offs.map(levelOf),
      wrong = levels.flatMap((level, row) => (level ? [row] : []));
    const counts = LEVELS.map((_, level) => levels.filter((one) => one === level).length);
    const counted = LEVELS.flatMap(([, words], n) => (counts[n] ? [`${counts[n]} ${words}`] : []));
    const picture = drawn("svg", { viewBox: `0 0 ${columns} ${lines}`, role: "img" });
    picture.setAttribute("aria-label", `Rows of the result: ${counted.join(", ")}`);
    const cell = (row) => [row % columns, Math.floor(row / columns)];
    LEVELS.forEach(([name], level) => {
      const paths = levels.flatMap((one, row) => (one === level ? [cell(row)] : []));
      const d = paths.map(([x, y]) => `M${x + 0.06} ${y + 0.06}h.88v.88h-.88z`).join("");
      if (d) picture.append(drawn("path", { class: `row-map-${name}`, d }));
    });
    const legend = make("ul");
    LEVELS.forEach(([name, words], n) => {
      if (counts[n]) legend.append(make("li", {}, make("i", { class: `row-map-${name}` }), `${counts[n]} ${words}`));
    });
    const title = make("p", {}, "Which rows are wrong: a cell per row, the first at the top left.");
    const furthest = (one, row) => (Number.isNaN(offs[row]) || offs[row] > offs[one] ? row : one);
    const worst = wrong.reduce((one, row) => (Number.isNaN(offs[one]) ? one : furthest(one, row)), wrong[0] ?? 0);
    const [x, y] = cell(worst);
    picture.append(drawn("rect", { class: "row-map-here", x, y, width: 1, height: 1 }));
    const told = `${wrong.length > 1 ? `Wrong: rows ${runs(wrong)}. ` : ""}${says(worst, offs[worst])}`;
    const where = make("p", { class: "row-map-where" }, told);
    place.replaceChildren(title, picture, where, legend);
  }

  window.rowMap = { draw };
})();
