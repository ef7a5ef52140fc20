/* Question cards (chapters/kit/quiz.py): checks the reader's choice. Enter in a choice checks it, as the button does.

The page holds the answers, which TVM computed when the page was built. Nothing is stored. Without scripts each answer
can be unfolded. */

(() => {
  const make = (tag, attributes, text = "") => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.textContent = text;
    return element;
  };

  function addButton(card) {
    const choices = [...card.querySelectorAll(".question-choice")];
    const answer = card.querySelector("details");
    const says = make("p", { class: "question-says", role: "status" });
    const bar = make("div", { class: "question-bar" });
    bar.append(make("button", { type: "submit", class: "question-button" }, "Check"), says);
    answer.before(bar);

    function showVerdict(text, outcome = "") {
      says.textContent = text;
      card.dataset.outcome = outcome;
      choices.forEach((choice) => delete choice.dataset.mark);
    }

    card.addEventListener("change", () => showVerdict(""));
    card.addEventListener("submit", (event) => {
      event.preventDefault();
      const chosen = choices.findIndex((choice) => choice.querySelector("input").checked);
      if (chosen < 0) return showVerdict("Choose an answer first.");
      const right = Number(card.dataset.right);
      const text = (at) => choices[at].textContent.trim();
      if (chosen === right) showVerdict(`Right: ${text(right)}`, "right");
      else showVerdict(`You chose “${text(chosen)}”. The computed answer is: ${text(right)}`, "wrong");
      choices[chosen].dataset.mark = "wrong";
      choices[right].dataset.mark = "right";
      answer.open = true;
    });
  }

  document.querySelectorAll("form.question").forEach(addButton);
})();
