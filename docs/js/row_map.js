/* A map of the rows of a result (docs/webgpu.md): a cell per row, darker where the row is further off. A line says which
rows are wrong, and how far the worst is off, which is marked. */

(() => {
  const MOST = 6; // runs of wrong rows that are named
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
    const columns = Math.ceil(Math.sqrt(offs.length));
    const cell = (row) => [row % columns, Math.floor(row / columns)];
    const rows = LEVELS.map((_, level) => offs.flatMap((off, row) => (levelOf(off) === level ? [row] : [])));
    const shown = LEVELS.map(([name, words], n) => ({ name, words: `${rows[n].length} ${words}`, rows: rows[n] }));
    const found = shown.filter((level) => level.rows.length);
    const wrong = rows.slice(1).flat().sort((a, b) => a - b);
    const furthest = (one, row) => (levelOf(offs[row]) > levelOf(offs[one]) || offs[row] > offs[one] ? row : one);
    const worst = wrong.reduce(furthest, wrong[0] ?? 0);
    const square = ([x, y]) => `M${x + 0.06} ${y + 0.06}h.88v.88h-.88z`;
    const paths = found.map(({ name, rows }) => `<path class="row-map-${name}" d="${rows.map(cell).map(square).join("")}"/>`);
    const [x, y] = cell(worst);
    place.innerHTML = `<p>Which rows are wrong: a cell per row, the first at the top left.</p>
      <svg viewBox="0 0 ${columns} ${Math.ceil(offs.length / columns)}" role="img"
        aria-label="Rows of the result: ${found.map(({ words }) => words).join(", ")}">${paths.join("")}
        <rect class="row-map-here" x="${x}" y="${y}" width="1" height="1"/></svg>
      <p class="row-map-where">${wrong.length > 1 ? `Wrong: rows ${runs(wrong)}. ` : ""}${says(worst, offs[worst])}</p>
      <ul>${found.map(({ name, words }) => `<li><i class="row-map-${name}"></i>${words}</li>`).join("")}</ul>`;
  }

  window.rowMap = { draw };
})();
