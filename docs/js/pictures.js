/* Pictures with a slider (chapters/kit/draw/scrubber.py). An element lists what it shows at each step, in data-texts,
data-marks and data-shares, or names the one step that it belongs to, in data-at; this script shows one step, and adds a
slider, buttons and, for several panels, a choice. A picture with data-dials gets a slider per dial instead. Without
scripts a picture shows its last step, or the dials' start, and all its panels. */

(() => {
  const SECONDS = { step: 0.7, all: 14 }; // at most, while it plays

  const make = (tag, attributes = {}, ...children) => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  };

  const button = (text, act) => {
    const made = make("button", { type: "button", class: "scrub-button" }, text);
    made.addEventListener("click", act);
    return made;
  };

  class Scrubber {
    constructor(section) {
      this.section = section;
      this.panels = [...section.querySelectorAll(".scrub-panel")].map((element) => ({
        element,
        says: element.dataset.says.split("|"),
        texts: [...element.querySelectorAll("[data-texts]")].map((e) => [e, e.dataset.texts.split("|")]),
        parts: [...element.querySelectorAll("[data-at]")].map((e) => [e, Number(e.dataset.at)]),
        marks: [...element.querySelectorAll("[data-marks]")].map((e) => [e, e.dataset.marks.split("|")]),
        shares: [...element.querySelectorAll("[data-shares]")].map((e) => [e, e.dataset.shares.split("|")]),
      }));
      this.build();
      section.classList.add("scrub-on");
      const start = Number(section.dataset.start);
      this.choose(this.panels[0], start < 0 ? this.panels[0].says.length + start : start);
    }

    build() {
      this.where = make("p", { class: "scrub-where", role: "status" });
      this.section.prepend(...this.choices(), this.controls(), this.where);
    }

    controls() {
      const label = this.section.getAttribute("aria-label");
      this.back = button("← Back", () => this.move(-1));
      this.next = button("Next →", () => this.move(1));
      this.player = button("▶ Play", () => (this.timer ? this.stop() : this.play()));
      this.range = make("input", { type: "range", min: 0, "aria-label": `${label}: step` });
      this.range.addEventListener("input", () => {
        this.stop();
        this.show(Number(this.range.value));
      });
      if (matchMedia("(prefers-reduced-motion: reduce)").matches) this.player.hidden = true;
      return make("div", { class: "scrub-bar" }, this.back, this.next, this.range, this.player);
    }

    choices() {
      if (this.panels.length < 2) return [];
      const { key, asks } = this.section.dataset;
      const made = make("fieldset", { class: "scrub-choices" }, make("legend", {}, asks));
      this.panels.forEach((panel, n) => {
        panel.radio = make("input", { type: "radio", name: key, id: `${key}-${n}` });
        panel.radio.addEventListener("change", () => this.choose(panel, this.ended() ? Infinity : this.step));
        made.append(make("label", { for: `${key}-${n}` }, panel.radio, panel.element.dataset.name));
      });
      return [made];
    }

    ended() {
      return this.step === this.panel.says.length - 1;
    }

    choose(panel, step) {
      this.stop();
      this.panel = panel;
      for (const other of this.panels) other.element.hidden = other !== panel;
      if (panel.radio) panel.radio.checked = true;
      this.show(Math.min(step, panel.says.length - 1));
    }

    move(by) {
      this.stop();
      const to = this.step + by;
      if (to >= 0 && to < this.panel.says.length) this.show(to);
    }

    play() {
      if (this.ended()) this.show(0);
      this.player.textContent = "❚❚ Pause";
      this.where.setAttribute("aria-live", "off");
      this.timer = setInterval(() => {
        this.show(this.step + 1);
        if (this.ended()) this.stop();
      }, 1000 * Math.min(SECONDS.step, SECONDS.all / this.panel.says.length));
    }

    stop() {
      clearInterval(this.timer);
      this.timer = 0;
      this.player.textContent = "▶ Play";
      this.where.removeAttribute("aria-live");
    }

    show(step) {
      this.step = step;
      const { says, texts, marks, shares, parts } = this.panel;
      const at = (list) => list[Math.min(step, list.length - 1)];
      for (const [element, list] of texts) element.textContent = at(list);
      for (const [element, list] of marks) element.dataset.mark = at(list);
      for (const [element, list] of shares) element.style.setProperty("--share", at(list));
      for (const [element, own] of parts) element.dataset.mark = step < own ? "later" : step === own ? "now" : "past";
      this.tell(step, at(says), says.length - 1);
    }

    tell(step, words, last) {
      this.range.max = last;
      this.range.value = step;
      this.range.setAttribute("aria-valuetext", `step ${step} of ${last}`);
      // not `disabled`: a button that is would lose the keyboard's focus
      this.back.setAttribute("aria-disabled", step === 0);
      this.next.setAttribute("aria-disabled", this.ended());
      this.where.textContent = `Step ${step} of ${last}: ${words}`;
    }
  }

  /* a slider per dial; a step is a combination of their values, the last dial fastest */
  class Dials extends Scrubber {
    controls() {
      this.dials = JSON.parse(this.section.dataset.dials).map(([name, values], n) => {
        const id = `${this.section.dataset.key}-dial-${n}`;
        const range = make("input", { type: "range", min: 0, max: values.length - 1, id });
        range.addEventListener("input", () => this.show(this.combined()));
        return { name, values, range, value: make("b", { "aria-hidden": true }) };
      });
      const rows = this.dials.map(({ name, range, value }) =>
        make("div", { class: "scrub-dial" }, make("label", { for: range.id }, name), range, value)
      );
      return make("div", { class: "scrub-dials" }, ...rows);
    }

    combined() {
      return this.dials.reduce((step, { values, range }) => step * values.length + Number(range.value), 0);
    }

    stop() {}

    tell(step, words) {
      for (const { values, range, value } of [...this.dials].reverse()) {
        range.value = step % values.length;
        step = Math.floor(step / values.length);
        value.textContent = values[range.value];
        range.setAttribute("aria-valuetext", value.textContent);
      }
      this.where.textContent = words;
    }
  }

  document.querySelectorAll(".scrub").forEach((section) => (section.dataset.dials ? new Dials(section) : new Scrubber(section)));
})();
