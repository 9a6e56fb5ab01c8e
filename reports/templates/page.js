document.getElementById("theme").addEventListener("click", theme.toggle);
theme.onChange(figures.redraw);

// The list of sections: a menu where the screen is narrow, and always where the reader is.
(() => {
  const menu = document.getElementById("menu");
  const list = document.getElementById("sections");
  const links = [...list.querySelectorAll("a[href^='#']")];
  const expand = (isOpen) => menu.setAttribute("aria-expanded", String(isOpen));
  menu.addEventListener("click", () => expand(menu.getAttribute("aria-expanded") !== "true"));
  list.addEventListener("click", (event) => { if (event.target.closest("a")) expand(false); });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || menu.getAttribute("aria-expanded") !== "true") return;
    expand(false);
    menu.focus();
  });

  const places = links.map((link) => [link, document.getElementById(link.hash.slice(1))]).filter(([, place]) => place);
  const mark = () => {
    const line = innerHeight / 3;
    const isAtEnd = scrollY + innerHeight >= document.documentElement.scrollHeight - 2;
    const passed = places.filter(([, place]) => isAtEnd || place.getBoundingClientRect().top <= line);
    const here = (passed.at(-1) ?? places[0])?.[0];
    for (const link of links) {
      if (link === here) link.setAttribute("aria-current", "location");
      else link.removeAttribute("aria-current");
    }
  };
  let isWaiting = false;
  addEventListener("scroll", () => {
    if (isWaiting) return;
    isWaiting = true;
    requestAnimationFrame(() => { isWaiting = false; mark(); });
  }, { passive: true });
  mark();
})();

// Paper is light and has everything on it: figures are drawn and details opened before printing.
(() => {
  const root = document.documentElement;
  let before = null;
  const prepare = () => {
    if (before) return;
    before = { theme: root.dataset.theme, closed: [...document.querySelectorAll("details:not([open])")] };
    before.closed.forEach((details) => { details.open = true; });
    root.dataset.theme = "light";
  };
  const restore = () => {
    if (!before) return;
    before.closed.forEach((details) => { details.open = false; });
    root.dataset.theme = before.theme;
    before = null;
    figures.redraw();
  };
  const paper = async () => { prepare(); await figures.redraw(); await figures.drawAll(); };
  const printed = async () => { await paper(); print(); };
  document.getElementById("print").addEventListener("click", printed);
  document.addEventListener("keydown", (event) => {
    if (event.key.toLowerCase() !== "p" || !(event.ctrlKey || event.metaKey) || event.shiftKey || event.altKey) return;
    event.preventDefault();
    printed();
  });
  addEventListener("beforeprint", paper);
  addEventListener("afterprint", restore);
})();
