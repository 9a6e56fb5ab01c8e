// The documents that the page carries, parsed when a figure first needs one: none delays the page.
const documents = (() => {
  const held = new Map();
  const get = (place = 0) => {
    if (!held.has(place)) {
      held.set(place, JSON.parse(document.querySelectorAll("script.document")[place].textContent));
    }
    return held.get(place);
  };
  return { get };
})();
