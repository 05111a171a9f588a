"use strict";
const find = document.getElementById("find");
const only = document.getElementById("only");
const rows = Array.from(document.querySelectorAll(".heat tbody tr"));
function filter() {
  const word = find.value.trim().toLowerCase();
  let shown = 0;
  for (const row of rows) {
    const fits = row.cells[0].textContent.toLowerCase().includes(word);
    row.hidden = !fits || (only.checked && row.dataset.change === "unchanged");
    shown += row.hidden ? 0 : 1;
  }
  document.getElementById("shown").textContent = word || only.checked ? `${shown} of ${rows.length} cases` : "";
}
find.addEventListener("input", filter);
only.addEventListener("change", filter);
// What is folded would be missing on paper.
let folded = [];
addEventListener("beforeprint", () => {
  folded = Array.from(document.querySelectorAll(".pair:not([open])"));
  for (const one of folded) one.open = true;
});
addEventListener("afterprint", () => {
  for (const one of folded) one.open = false;
});
