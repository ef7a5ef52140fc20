/* A film of one graph (docs/pages/front.py): shows one frame at a time and steps by itself, with buttons to pause and
to choose. A reader who asked the system for less motion steps by hand. Without scripts the first and the last frame
stand side by side. */

(() => {
  const PAUSE = 2600; // milliseconds per frame
  const LAST = 2; // how many times as long the last frame stays
  const still = matchMedia("(prefers-reduced-motion: reduce)");

  const button = (words, press) => {
    const made = document.createElement("button");
    made.type = "button";
    made.className = "film-button";
    made.textContent = words;
    made.addEventListener("click", press);
    return made;
  };

  class Film {
    constructor(section) {
      this.frames = [...section.querySelectorAll(".film-frame")];
      this.at = 0;
      this.seen = false;
      this.play = button("", () => this.run(!this.running));
      this.dots = this.frames.map((frame, n) => {
        const dot = button(`${n + 1}`, () => this.choose(n));
        dot.setAttribute("aria-label", `Step ${n + 1}: ${frame.querySelector("figcaption b").textContent}`);
        return dot;
      });
      const bar = document.createElement("div");
      bar.className = "film-bar";
      bar.append(this.play, ...this.dots);
      section.append(bar);
      section.classList.add("film-on");
      section.addEventListener("keydown", (event) => this.key(event));
      this.run(!still.matches);
      still.addEventListener("change", () => still.matches && this.run(false));
      new IntersectionObserver(([entry]) => {
        this.seen = entry.isIntersecting;
        this.wait();
      }).observe(section);
    }

    run(on) {
      this.running = on;
      this.play.textContent = on ? "Pause" : "Play";
      this.show(this.at);
    }

    choose(n) {
      this.at = n;
      this.run(false);
    }

    key(event) {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!by || event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
      if (event.target.closest("[tabindex='0']")) return; // a picture that scrolls uses the arrows itself
      this.choose(Math.min(Math.max(this.at + by, 0), this.frames.length - 1));
      this.dots[this.at].focus();
      event.preventDefault();
    }

    show(n) {
      this.at = n;
      this.frames.forEach((frame, other) => frame.classList.toggle("here", other === n));
      this.dots.forEach((dot, other) => dot.setAttribute("aria-pressed", other === n));
      this.wait();
    }

    wait() {
      clearTimeout(this.timer);
      if (!this.running || !this.seen) return;
      const stay = this.at === this.frames.length - 1 ? LAST * PAUSE : PAUSE;
      this.timer = setTimeout(() => this.show((this.at + 1) % this.frames.length), stay);
    }
  }

  document.querySelectorAll(".film").forEach((section) => new Film(section));
})();
