// Runs Perfetto's trace processor, built as a web worker, as a program: bytes of its RPC protocol
// come in on stdin and go out on stdout. Usage: node trace_processor.js FOLDER, where
// engine_bundle.js and trace_processor*.wasm lie.
"use strict";
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const folder = process.argv[2];
const { stdin } = process;

// The engine fetches its .wasm, and nothing else, by a synchronous request.
class FileRequest {
  open(method, name) {
    this.file = path.join(folder, path.basename(name));
  }
  send() {
    this.response = new Uint8Array(fs.readFileSync(this.file)).buffer;
  }
}

// Writes until all is written, so that replies keep their order and none is cut by the end.
function postMessage(bytes) {
  for (let at = 0; at < bytes.length; ) {
    try {
      at += fs.writeSync(1, bytes, at);
    } catch (error) {
      if (error.code !== "EAGAIN") throw error;
    }
  }
}

Object.assign(globalThis, {
  self: globalThis,
  WorkerGlobalScope: class {},
  importScripts() {},
  XMLHttpRequest: FileRequest,
  location: { href: "" },
});
// stdout carries replies, and a complaint about a call that no browser has is no fault of a trace
const complain = console.error;
console.log = console.warn = console.error = (...words) => {
  if (!String(words[0]).startsWith("warning: unsupported syscall")) complain(...words);
};
Reflect.deleteProperty(globalThis, "process"); // else the engine takes this for a server
vm.runInThisContext(fs.readFileSync(path.join(folder, "engine_bundle.js"), "utf8"));

const port = { postMessage };
globalThis.self.onmessage({ data: port });
stdin.on("data", (bytes) => port.onmessage({ data: new Uint8Array(bytes) }));
