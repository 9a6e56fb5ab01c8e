"use strict";
// Sorting by any column and filtering by any text, for every table on the page.
const tables = (() => {
  // What a cell says is not there, as it shows "–" or nothing, is not known, whatever stands for it.
  const value = (row, column) => {
    const { absent, value: written } = row.cells[column].dataset;
    const told = absent === undefined ? JSON.parse(written) : null;
    return told === "" ? null : told;
  };

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
  const headingsOf = (table) => [...table.tHead.rows[0].cells].map((heading) => heading.textContent.trim());
  // What is shown, the id that a label is made of, and each cell behind its heading, as "rank 5".
  const textsOf = (table, row) => {
    const headings = headingsOf(table);
    const cells = [...row.cells].map((cell) => (cell.dataset.absent === undefined && cell.title) || cell.textContent.trim());
    const ids = [...row.cells].map((cell) => JSON.parse(cell.dataset.value)).filter((id) => typeof id === "string");
    const named = cells.map((cell, column) => `${headings[column]} ${cell}`);
    return [[...cells, ...ids].join("\n").toLowerCase(), [...cells, ...named].join("\n").toLowerCase()];
  };
  const textOf = (table, row) => {
    if (!texts.has(row)) texts.set(row, textsOf(table, row));
    return texts.get(row);
  };

  // A number is meant together with what stands before it, a whole heading or else one word:
  // "rank 5" is not rank 55, nor rank 3 of step 5.
  const escaped = (text) => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
  const phrase = (text) => new RegExp(`(?<![\\p{L}\\p{N}_])${escaped(text)}(?!\\d|[.,]\\d)`, "u");
  const askedFor = (wanted, headings) => {
    const words = [];
    const phrases = [];
    for (const word of wanted.toLowerCase().split(/\s+/).filter(Boolean)) {
      if (!/^\d[\d.,]*$/.test(word) || !/^\p{L}/u.test(words.at(-1) ?? "")) {
        words.push(word);
        continue;
      }
      const starts = words.map((_, at) => at);
      const start = starts.find((at) => headings.includes(words.slice(at).join(" "))) ?? words.length - 1;
      phrases.push(phrase([...words.splice(start), word].join(" ")));
    }
    return { words, phrases };
  };

  // Keeps the rows that have every word and phrase, and returns how many these are.
  const filter = (box, wanted) => {
    const table = box.querySelector("table");
    const { words, phrases } = askedFor(wanted, headingsOf(table).map((name) => name.toLowerCase()));
    const rows = [...table.tBodies[0].rows];
    let shown = 0;
    for (const row of rows) {
      const [text, named] = textOf(table, row);
      row.hidden = !words.every((word) => text.includes(word)) || !phrases.every((phrase) => phrase.test(named));
      shown += !row.hidden;
    }
    const total = `${rows.length} row${rows.length === 1 ? "" : "s"}`;
    const found = shown ? `${shown} of ${total}` : "no row matches";
    box.querySelector(".count").textContent = shown === rows.length ? total : found;
    return words.length || phrases.length ? shown : 0;
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
