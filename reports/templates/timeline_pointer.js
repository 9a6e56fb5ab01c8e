// Wheel, mouse and finger on a timeline.
const timelinePointer = (stage, tip, choose) => {
  const { pane, canvas, overview, whole, view, shown, gutter, width, plotWidth, stampAt, plan, show, zoom, pan } = stage;
  const { bandAt, pieceAt, toggle } = stage;

  pane.addEventListener("scroll", plan);
  pane.addEventListener("wheel", (event) => {
    const isSideways = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
    const isMine = event.ctrlKey || event.metaKey || pane.contains(document.activeElement);
    if (!isSideways && !isMine) return;
    event.preventDefault();
    const by = event.deltaMode === 1 ? 33 : 1;
    if (isSideways) pan(((event.deltaX || event.deltaY) * by) / plotWidth());
    else zoom(1.0015 ** (event.deltaY * by), Math.min(Math.max(stampAt(event.offsetX), view.start), view.end));
  }, { passive: false });

  // Dragging chooses a stretch to zoom into; with Shift, or with a finger, it moves the picture.
  let grip = null;
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button > 1) return;
    const isMove = event.shiftKey || event.button === 1 || event.pointerType === "touch";
    grip = { x: event.offsetX, y: event.offsetY, isMove, isFar: false, start: view.start, end: view.end };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    const { offsetX: x, offsetY: y } = event;
    if (!grip) return tip.point(pieceAt(x, y), x, y);
    grip.isFar ||= Math.abs(x - grip.x) > 4;
    if (!grip.isFar || grip.x < gutter()) return undefined;
    tip.hide();
    if (grip.isMove) {
      const by = ((grip.x - x) / plotWidth()) * (grip.end - grip.start);
      const kept = Math.min(Math.max(by, -grip.start), whole.end - grip.end);
      show(grip.start + kept, grip.end + kept);
    } else {
      const until = Math.min(Math.max(x, gutter()), width());
      shown.drag = [stampAt(grip.x), stampAt(until)];
      plan();
    }
    return undefined;
  });
  canvas.addEventListener("pointerup", (event) => {
    const { drag } = shown;
    const was = grip;
    [grip, shown.drag] = [null, null];
    if (drag) return show(Math.min(...drag), Math.max(...drag));
    if (!was || was.isFar) return plan();
    const band = bandAt(event.offsetY);
    if (band && event.offsetX < gutter() && !band.row) {
      return toggle(band.device);
    }
    const piece = pieceAt(event.offsetX, event.offsetY);
    choose(piece);
    return tip.point(piece, event.offsetX, event.offsetY);
  });
  canvas.addEventListener("pointercancel", () => { [grip, shown.drag] = [null, null]; plan(); });
  canvas.addEventListener("pointerleave", () => { tip.hide(); });
  canvas.addEventListener("dblclick", () => show(whole.start, whole.end));
  overview.addEventListener("pointerdown", (event) => overview.setPointerCapture(event.pointerId));
  for (const kind of ["pointerdown", "pointermove"]) {
    overview.addEventListener(kind, (event) => {
      if (!event.buttons) return;
      const at = ((event.offsetX - gutter()) / plotWidth()) * whole.end;
      const length = view.end - view.start;
      const start = Math.min(Math.max(at - length / 2, 0), whole.end - length);
      show(start, start + length);
    });
  }
};
