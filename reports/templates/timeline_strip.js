// All of the picture as a strip: how much of all lanes' time each part fills, pixel by pixel, and which
// stretch of it is in sight.
const timelineStrip = (model, colours, span) => {
  const { theme, fitted, sized } = timelinePen;
  let strip = null;
  const filled = (width, height) => {
    if (strip?.width === width) return strip;
    const parts = Array.from(colours, () => new Float64Array(width));
    const scale = width / model.duration;
    for (const device of model.devices) {
      for (const row of device.rows) {
        for (let piece = row.first; piece < row.last; piece++) {
          const part = parts[model.component[piece]];
          const from = model.start[piece] * scale;
          const density = model.busy[piece] / Math.max(model.end[piece] - model.start[piece], 1);
          const to = Math.min(model.end[piece] * scale, width);
          for (let pixel = Math.floor(from); pixel < to; pixel++) {
            part[pixel] += density * (Math.min(to, pixel + 1) - Math.max(from, pixel));
          }
        }
      }
    }
    const sums = Float64Array.from({ length: width }, (_, pixel) => parts.reduce((sum, part) => sum + part[pixel], 0));
    const highest = sums.reduce((most, sum) => Math.max(most, sum), 1e-9);
    const picture = document.createElement("canvas");
    const context = sized(picture, width, height);
    for (let pixel = 0; pixel < width; pixel++) {
      let bottom = height;
      for (const [code, part] of parts.entries()) {
        if (!part[pixel]) continue;
        const high = (part[pixel] / highest) * (height - 2);
        context.fillStyle = colours[code].colour;
        context.fillRect(pixel, bottom - high, 1, high);
        bottom -= high;
      }
    }
    strip = { width, picture };
    return strip;
  };

  const overview = (canvas, state, isPrinted) => {
    const { width, gutter, view } = state;
    const height = 36;
    const context = sized(canvas, width, height);
    const colour = theme(isPrinted);
    const wide = Math.max(Math.floor(width - gutter), 1);
    context.drawImage(filled(wide, height).picture, gutter, 0, wide, height);
    context.font = `11px ${colour.font}`;
    context.textBaseline = "middle";
    context.fillStyle = colour.soft;
    context.fillText(fitted(context, `whole ${span}`, gutter - 10), 4, height / 2);
    const [from, to] = [view.start, view.end].map((stamp) => gutter + (stamp / model.duration) * wide);
    context.fillStyle = colour.card;
    context.globalAlpha = 0.66;
    context.fillRect(gutter, 0, from - gutter, height);
    context.fillRect(to, 0, gutter + wide - to, height);
    context.globalAlpha = 1;
    context.strokeStyle = colour.ink;
    context.lineWidth = 1.5;
    context.strokeRect(from + 0.75, 0.75, Math.max(to - from - 1.5, 2), height - 1.5);
  };
  return overview;
};
