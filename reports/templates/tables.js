"use strict";
// Sorting by any column and filtering by any text, for every table on the page.
const tables = (() => {
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

  const boxes = [...document.querySelectorAll("div.table")];
  const texts = new WeakMap();
  const textOf = (row) => {
    if (!texts.has(row)) texts.set(row, [...row.cells].map((cell) => cell.title || cell.textContent).join("\n").toLowerCase());
    return texts.get(row);
  };

  // Keeps the rows that have every word, and returns how many these are.
  const filter = (box, wanted) => {
    const words = wanted.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = [...box.querySelector("tbody").rows];
    let shown = 0;
    for (const row of rows) {
      row.hidden = !words.every((word) => textOf(row).includes(word));
      shown += !row.hidden;
    }
    const total = `${rows.length} row${rows.length === 1 ? "" : "s"}`;
    box.querySelector(".count").textContent = shown === rows.length ? total : `${shown} of ${total}`;
    return words.length ? shown : 0;
  };

  const filterAs = (box, wanted) => {
    box.querySelector("input").value = wanted;
    return filter(box, wanted);
  };

  for (const box of boxes) {
    const table = box.querySelector("table");
    for (const heading of table.tHead.rows[0].cells) {
      heading.querySelector("button").addEventListener("click", () => sort(table, heading));
    }
    box.querySelector("input").addEventListener("input", (event) => {
      filter(box, event.target.value);
    });
  }

  return {
    // Filters every table, and tells how many rows of each match.
    find: (wanted) => new Map(boxes.map((box) => [box, filterAs(box, wanted)])),
    filterWithin: (place, wanted) => place.querySelectorAll("div.table").forEach((box) => filterAs(box, wanted)),
  };
})();
