'use strict';
// The helper library of code in a sandbox. Every function returns a promise; what
// is called without await still completes before the program ends.

const fs = require('fs');
const net = require('net');
const path = require('path');

const PARALLEL = 8; // calls at once; more wait here
const MAX_ANSWER = 1 << 20;

/** What the sandbox's broker refused: code for programs, hint for people. */
class WorkbenchError extends Error {
  constructor({ code, detail, hint }) {
    super(hint ? `${detail} (${hint})` : detail);
    this.name = 'WorkbenchError';
    this.code = code;
    this.detail = detail;
    this.hint = hint;
  }
}

let active = 0;
const waiting = [];

async function turn(work) {
  if (active >= PARALLEL) await new Promise((go) => waiting.push(go));
  else active++;
  try {
    return await work();
  } finally {
    const next = waiting.shift();
    if (next) next();
    else active--;
  }
}

function exchange(request) {
  return new Promise((resolve, reject) => {
    const body = Buffer.from(JSON.stringify({ token: process.env.WORKBENCH_TOKEN, ...request }));
    const head = Buffer.alloc(4);
    head.writeUInt32BE(body.length);
    const parts = [];
    let size = 0;
    const socket = net.connect(process.env.WORKBENCH_SOCKET ?? '');
    socket.on('connect', () => socket.write(Buffer.concat([head, body])));
    socket.on('data', (data) => {
      parts.push(data);
      size += data.length;
      if (size > MAX_ANSWER) socket.destroy(new WorkbenchError({ code: 'internal', detail: 'the answer is too long' }));
    });
    socket.on('error', (error) => reject(error instanceof WorkbenchError ? error
      : new WorkbenchError({ code: 'unavailable', detail: `the sandbox's broker cannot be reached: ${error.message}` })));
    socket.on('end', () => {
      try {
        const answer = JSON.parse(Buffer.concat(parts).subarray(4).toString());
        if (answer.error) reject(new WorkbenchError(answer.error));
        else resolve(answer.result ?? null);
      } catch {
        reject(new WorkbenchError({ code: 'unavailable', detail: 'the sandbox\'s broker ended the call' }));
      }
    });
  });
}

/**
 * Keeps a file beyond the session. With content (a string, bytes, a Blob, a
 * stream, or anything iterable of those) it is written first, at its name in
 * the workspace.
 */
function save(name, content) {
  const file = path.resolve(String(name));
  return turn(async () => {
    if (content !== undefined) {
      if (typeof content?.arrayBuffer === 'function') content = Buffer.from(await content.arrayBuffer());
      if (content instanceof ArrayBuffer) content = Buffer.from(content);
      await fs.promises.mkdir(path.dirname(file), { recursive: true });
      await fs.promises.writeFile(file, content);
    }
    return exchange({ op: 'save', path: Buffer.from(file).toString('base64') });
  });
}

/** Sets the run's structured result: any JSON value; the last one counts. */
function result(value) {
  const json = JSON.stringify(value);
  if (json === undefined) return Promise.reject(new TypeError('the result is not a JSON value'));
  return turn(() => exchange({ op: 'result', value: JSON.parse(json) }));
}

/** Calls a tool. */
function call(tool, args = {}, options = {}) {
  return turn(() => exchange({ op: 'call', name: String(tool), value: { args, ...options } }));
}

module.exports = { save, result, call, WorkbenchError };
