"use strict";
// Sorting by any column and filtering by any text, for every table on the page.
(() => {
  const value = (row, column) => JSON.parse(row.cells[column].dataset.value);

  // Rows whose value is not known go last, whichever way the rest is sorted.
  const compare = (a, b, sign) => {
    if (a === null || b === null) return (a === null) - (b === null);
    if (typeof a === "string" && typeof b === "string") return sign * a.localeCompare(b, undefined, { numeric: true });
    return sign * (a < b ? -1 : a > b ? 1 : 0);
  };

  const sort = (table, heading) => {
    const column = heading.cellIndex;
    const body = table.tBodies[0];
    const isFigure = heading.classList.contains("figure");
    const before = heading.getAttribute("aria-sort");
    // A figure is asked for its largest first, a name for its first letter.
    const order = before === null ? (isFigure ? "descending" : "ascending") : before === "ascending" ? "descending" : "ascending";
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", order);
    const sign = order === "ascending" ? 1 : -1;
    const rows = [...body.rows].sort((a, b) => compare(value(a, column), value(b, column), sign));
    body.append(...rows);
  };

  const filter = (box, words) => {
    const rows = [...box.querySelectorAll("tbody tr")];
    for (const row of rows) {
      const text = [...row.cells].map((cell) => cell.title || cell.textContent).join("\n").toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    }
    const shown = rows.filter((row) => !row.hidden).length;
    const total = `${rows.length} row${rows.length === 1 ? "" : "s"}`;
    box.querySelector(".count").textContent = shown === rows.length ? total : `${shown} of ${total}`;
  };

  for (const box of document.querySelectorAll("div.table")) {
    const table = box.querySelector("table");
    for (const heading of table.tHead.rows[0].cells) {
      heading.querySelector("button").addEventListener("click", () => sort(table, heading));
    }
    box.querySelector("input").addEventListener("input", (event) => {
      filter(box, event.target.value.toLowerCase().split(/\s+/).filter(Boolean));
    });
  }
})();
