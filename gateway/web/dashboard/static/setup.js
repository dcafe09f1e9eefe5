// The set-up checklist: asks for its state again and again while the page is visible.
"use strict";
const AGAIN_AFTER = 4000;
let shown = "";

async function update() {
  const response = document.hidden ? null : await fetch("/setup/steps", { headers: { Accept: "text/html" } }).catch(() => null);
  if (response?.ok) {
    const text = await response.text();
    // Only what has changed is replaced: a selection, the focus and a screen reader are left alone.
    if (text !== shown) {
      shown = text;
      const steps = new DOMParser().parseFromString(text, "text/html").getElementById("setup");
      const before = document.getElementById("setup");
      for (const [place, step] of [...steps.querySelectorAll(".step")].entries()) {
        const old = before.querySelectorAll(".step")[place];
        if (old.outerHTML !== step.outerHTML) old.replaceWith(step);
      }
      const status = before.querySelector("[role=status]");
      const count = steps.querySelector("[role=status]").textContent;
      if (status.textContent !== count) status.textContent = count;
    }
  }
  setTimeout(update, AGAIN_AFTER);
}
update();
