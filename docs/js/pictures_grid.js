/* The grid of verdicts (docs/pages/verdict_grid.py): a click on a count leaves only its tiles bright, and a line tells
about the tile that was chosen by mouse or arrow keys. Without scripts it is counts and tiles. */

(() => {
  class Grid {
    constructor(section) {
      this.section = section;
      this.tiles = [...section.querySelectorAll(".vg-tile")];
      this.wanted = { builtin: "", ours: "" };
      this.counts = [...section.querySelectorAll(".vg-count")].map((item) => this.press(item));
      this.where = document.createElement("p");
      this.where.className = "vg-where";
      this.where.setAttribute("role", "status");
      section.querySelector(".vg-key").after(this.where);
      this.tiles.forEach((tile) => this.dress(tile));
      section.addEventListener("keydown", (event) => this.key(event));
      section.classList.add("vg-on");
      this.filter();
    }

    /* the item's content becomes a button that is pressed or not */
    press(item) {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...item.childNodes);
      item.append(button);
      const { who, kind } = item.dataset;
      button.addEventListener("click", () => {
        this.wanted[who] = this.wanted[who] === kind ? "" : kind;
        this.filter();
      });
      return { button, who, kind };
    }

    dress(tile) {
      const button = document.createElement("button");
      button.type = "button";
      button.tabIndex = -1;
      button.append(...tile.childNodes);
      tile.append(button);
      tile.removeAttribute("title"); // the line below the counts says it
      for (const kind of ["focus", "pointerenter"]) button.addEventListener(kind, () => this.tell(tile));
      button.addEventListener("click", () => this.choose(tile));
    }

    bright() {
      return this.tiles.filter((tile) => !tile.classList.contains("vg-dim"));
    }

    filter() {
      const { builtin, ours } = this.wanted;
      for (const tile of this.tiles) {
        const fits = (!builtin || tile.dataset.builtin === builtin) && (!ours || tile.dataset.ours === ours);
        tile.classList.toggle("vg-dim", !fits);
        tile.firstChild.setAttribute("aria-disabled", !fits);
        tile.firstChild.tabIndex = -1;
      }
      for (const { button, who, kind } of this.counts) button.setAttribute("aria-pressed", this.wanted[who] === kind);
      const bright = this.bright();
      if (bright.length) bright[0].firstChild.tabIndex = 0;
      this.where.textContent = `${bright.length} of ${this.tiles.length} programs. Choose a count to filter, a tile to read.`;
    }

    /* one tile is a stop of the tab key; the arrows move it */
    choose(tile) {
      for (const other of this.tiles) other.firstChild.tabIndex = other === tile ? 0 : -1;
      tile.firstChild.focus();
      this.tell(tile);
    }

    tell(tile) {
      this.where.textContent = tile.querySelector(".vg-said").textContent;
    }

    key(event) {
      const tile = event.target.closest(".vg-tile");
      const bright = this.bright();
      const at = bright.indexOf(tile);
      const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: bright.length - 1 }[event.key];
      if (!tile || to === undefined || event.altKey || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      if (bright[to]) this.choose(bright[to]);
    }
  }

  document.querySelectorAll(".vg").forEach((section) => new Grid(section));
})();
