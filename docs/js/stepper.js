/* Pictures that a reader steps through (chapters/kit/draw/stepper.py). An element lists what it shows at each step, in
data-texts, data-marks and data-shares, or names the one step that it belongs to, in data-at; this script shows one step,
and adds a slider per dial, buttons and, for several panels, a choice. A dial without values is the steps themselves. */

(() => {
  const SECONDS = { step: 0.7, all: 14 }; // at most, while it plays
  const CHANGING = "[data-texts], [data-marks], [data-shares], [data-at]";

  const make = (tag, attributes = {}, ...children) => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  };

  const button = (text, act, attributes = {}) => {
    const made = make("button", { type: "button", class: "course-button", ...attributes }, text);
    made.addEventListener("click", act);
    return made;
  };

  function updateElement(element, step) {
    const { texts, marks, shares, at } = element.dataset;
    const now = (list) => list.split("|")[Math.min(step, list.split("|").length - 1)];
    if (texts !== undefined) element.textContent = now(texts);
    if (marks !== undefined) element.dataset.mark = now(marks);
    if (shares !== undefined) element.setAttribute("style", `--share:${now(shares)}`);
    if (at !== undefined) element.dataset.mark = step < at ? "later" : step > at ? "past" : "now";
  }

  function addControls(section) {
    const { key, asks, start } = section.dataset;
    const label = section.getAttribute("aria-label");
    const panels = [...section.querySelectorAll(".stepper-panel")];
    let panel = panels[0];
    let step = 0;
    let timer = 0;

    const says = () => panel.dataset.says.split("|");
    const ended = () => step === says().length - 1;

    const dials = JSON.parse(section.dataset.dials).map(([name, values], n) => {
      const range = make("input", { type: "range", min: 0, id: `${key}-dial-${n}` });
      range.addEventListener("input", readDials);
      const by = (number, text, words) =>
        button(text, () => (range.stepUp(number), readDials()), { "aria-label": `${label}: ${name} ${words}` });
      const bar = make("div", { class: "stepper-dial" }, make("label", { for: range.id }, name));
      const value = make("b", { "aria-hidden": true });
      bar.append(by(-1, "←", "back"), range, by(1, "→", "on"), value);
      return { range, bar, value, values: () => values ?? says().map((_, at) => `${at} of ${says().length - 1}`) };
    });

    function readDials() {
      stop();
      show(dials.reduce((at, { values, range }) => at * values().length + Number(range.value), 0));
    }

    function show(to) {
      let rest = (step = Math.min(to, says().length - 1));
      for (const { range, value, values } of [...dials].reverse()) {
        const count = values().length;
        range.max = count - 1;
        range.value = rest % count;
        value.textContent = values()[rest % count];
        range.setAttribute("aria-valuetext", value.textContent);
        rest = Math.floor(rest / count);
      }
      panel.querySelectorAll(CHANGING).forEach((element) => updateElement(element, step));
      panel.querySelector(".stepper-says").textContent = says()[step];
    }

    const player = button("▶ Play", () => (timer ? stop() : play()));

    function play() {
      if (ended()) show(0);
      player.textContent = "❚❚ Pause";
      timer = setInterval(() => {
        show(step + 1);
        if (ended()) stop();
      }, 1000 * Math.min(SECONDS.step, SECONDS.all / says().length));
    }

    function stop() {
      clearInterval(timer);
      timer = 0;
      player.textContent = "▶ Play";
    }

    function choose(chosen) {
      stop();
      panel = chosen;
      for (const other of panels) other.hidden = other !== panel;
      show(step);
    }

    const choices = make("fieldset", { class: "stepper-choices" }, make("legend", {}, asks));
    panels.forEach((one, n) => {
      const radio = make("input", { type: "radio", name: key, id: `${key}-${n}` });
      radio.checked = one === panel;
      radio.addEventListener("change", () => choose(one));
      choices.append(make("label", { for: radio.id }, radio, one.dataset.name));
    });
    if (dials.length === 1 && !matchMedia("(prefers-reduced-motion: reduce)").matches) dials[0].bar.append(player);
    section.prepend(...(panels.length > 1 ? [choices] : []), ...dials.map(({ bar }) => bar));
    section.classList.add("stepper-on");
    step = Number(start);
    choose(panel);
  }

  document.querySelectorAll(".stepper").forEach(addControls);
})();
