/* One pass at a time: makes of a list of passes (docs/pages/pass_stepper.py) a view with buttons, a menu, a strip
of bars and the arrow keys. What a pass changed comes out of the packed text beside the list when it is shown. Without
scripts the list stays a list, with the first change. */

(() => {
  const make = (tag, attributes = {}, ...children) => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  };

  const COPY = "Copy to clipboard";

  async function unpacked(text) {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).json();
  }

  /* the theme gives code a button to copy it, but only to the code that a page begins with */
  function copies(body, id) {
    body.querySelectorAll("pre").forEach((pre, n) => {
      pre.id = `${id}-code-${n + 1}`;
      const target = { "data-clipboard-target": `#${pre.id} > code`, "data-md-type": "copy" };
      const button = make("button", { class: "md-code__button", title: COPY, ...target });
      pre.prepend(make("nav", { class: "md-code__nav", role: "none" }, button));
    });
  }

  class Stepper {
    constructor(section) {
      this.section = section;
      this.label = section.getAttribute("aria-label");
      this.steps = [...section.querySelectorAll(".step")];
      this.all = !this.steps.some((step) => !this.idle(step));
      this.build();
      this.steps.forEach((step) => this.dress(step));
      section.classList.add("stepper-on");
      this.show(this.named() || this.shown()[0]);
      this.wait();
    }

    idle(step) {
      return step.classList.contains("step-idle");
    }

    name(step) {
      return step.querySelector(".step-name").textContent;
    }

    shown() {
      return this.steps.filter((step) => this.all || !this.idle(step));
    }

    named() {
      return this.steps.find((step) => `#${step.id}` === location.hash);
    }

    build() {
      this.back = make("button", { type: "button", class: "stepper-button" }, make("b", {}, "←"), " Previous");
      this.next = make("button", { type: "button", class: "stepper-button" }, "Next ", make("b", {}, "→"));
      this.menu = make("select", { "aria-label": `${this.label}: choose a pass` });
      this.tick = make("input", { type: "checkbox" });
      this.where = make("p", { class: "stepper-where", role: "status" });
      this.strip = make("div", { class: "stepper-strip", "aria-hidden": "true" });
      const label = make("label", { class: "stepper-all" }, this.tick, " also passes that change nothing");
      this.tick.checked = this.all;
      this.bar = make("div", { class: "stepper-bar" }, this.back, this.menu, this.next);
      this.section.prepend(label, this.strip, this.bar, this.where);
      this.back.addEventListener("click", () => this.move(-1));
      this.next.addEventListener("click", () => this.move(1));
      this.menu.addEventListener("change", () => this.show(document.getElementById(this.menu.value), true));
      this.tick.addEventListener("change", () => {
        this.all = this.tick.checked;
        this.show(this.shown().includes(this.step) ? this.step : this.shown()[0], true);
      });
    }

    /* the bars' heights are logarithms: the slowest pass takes a thousand times as long as the quickest */
    dress(step) {
      const height = Math.log10(1 + 100 * Number(step.dataset.ms)) / 5;
      const bar = make("i", { title: `${this.name(step)}: ${step.querySelector(".step-facts").textContent}` });
      bar.style.setProperty("--h", Math.min(1, Math.max(0.06, height)).toFixed(3));
      bar.classList.toggle("idle", this.idle(step));
      bar.addEventListener("click", () => {
        if (this.idle(step)) this.all = this.tick.checked = true;
        this.show(step, true);
      });
      this.strip.append(bar);
    }

    move(by) {
      const steps = this.shown();
      const to = steps.indexOf(this.step) + by;
      if (to >= 0 && to < steps.length) this.show(steps[to], true);
    }

    show(step, asked = false) {
      if (this.idle(step)) this.all = this.tick.checked = true;
      const steps = this.shown();
      const at = steps.indexOf(step);
      this.step = step;
      this.steps.forEach((other, i) => {
        other.hidden = other !== step;
        this.strip.children[i].classList.toggle("here", other === step);
      });
      this.menu.replaceChildren(
        ...steps.map((other, i) => make("option", { value: other.id }, `${i + 1} · ${this.name(other)}`)),
      );
      this.menu.value = step.id;
      // not `disabled`: a button that is would lose the keyboard's focus
      this.back.setAttribute("aria-disabled", at === 0);
      this.next.setAttribute("aria-disabled", at === steps.length - 1);
      const facts = step.querySelector(".step-facts").textContent;
      this.where.textContent = `Pass ${at + 1} of ${steps.length}: ${this.name(step)} · ${facts}`;
      if (asked) history.replaceState(null, "", `#${step.id}`);
      if (asked || this.seen) this.fill(step).then(() => asked && this.toTop());
    }

    /* the rest of the first pass is unpacked when a reader comes to it */
    wait() {
      const seen = new IntersectionObserver(([entry]) => {
        if (!entry.isIntersecting) return;
        seen.disconnect();
        this.seen = true;
        this.fill(this.step);
      });
      seen.observe(this.where);
    }

    /* a reader who is deep in one pass begins the next at its top */
    toTop() {
      if (this.where.getBoundingClientRect().top < this.bar.getBoundingClientRect().bottom) this.where.scrollIntoView();
    }

    async fill(step) {
      if (step.dataset.filled) return;
      step.dataset.filled = "yes";
      this.bodies ??= unpacked(this.section.querySelector(".stepper-bodies").textContent);
      const body = step.querySelector(".step-body");
      body.innerHTML = (await this.bodies)[this.steps.indexOf(step)];
      copies(body, step.id);
    }

    visible() {
      const { top, bottom } = this.section.getBoundingClientRect();
      return bottom > 120 && top < innerHeight - 120;
    }
  }

  if (!window.DecompressionStream) return;
  const steppers = [...document.querySelectorAll(".stepper")].map((section) => new Stepper(section));
  if (!steppers.length) return;

  addEventListener("hashchange", () => {
    steppers.forEach((stepper) => stepper.named() && stepper.show(stepper.named()));
  });

  document.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by || event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
    // these use the arrows themselves; so does a block that scrolls, which keyboard.js makes a stop
    if (event.target.closest("input:not([type=checkbox]), select, textarea, [tabindex='0']")) return;
    const stepper = steppers.find((s) => s.section.contains(event.target)) || steppers.find((s) => s.visible());
    if (!stepper) return;
    stepper.move(by);
    event.preventDefault();
  });
})();
