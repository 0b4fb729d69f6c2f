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

const MAX_DISPLAY = 16 << 20; // of one display, as JSON
const MAX_TEXT = 1 << 20; // of a text that has to be cut
const MAX_DEPTH = 1000; // of what is shown as JSON
const HALF = /\p{Surrogate}/u; // of a pair, by itself: no text on the wire has it

let active = 0;
const waiting = [];
const calls = new Set();
const answers = new WeakSet(); // the promises that callers got

let shown = Promise.resolve(); // the last display or result: they come in order

function turn(work, ordered = false) {
  const call = ordered ? shown.then(() => inTurn(work)) : inTurn(work);
  const over = () => calls.delete(call);
  calls.add(call);
  const ended = call.then(over, over);
  if (ordered) shown = ended;
  const answer = call.then((value) => value); // whose failure is the caller's to look at
  answers.add(answer);
  return answer;
}

/** Whether a value is what one of the library's functions returned. */
function isCall(value) {
  return typeof value === 'object' && value !== null && answers.has(value);
}

/** Resolves once no call is under way. */
async function settled() {
  while (calls.size) await Promise.allSettled(calls);
}

async function inTurn(work) {
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

function exchange(request, content = Buffer.alloc(0)) {
  return new Promise((resolve, reject) => {
    const body = Buffer.from(JSON.stringify({ token: process.env.WORKBENCH_TOKEN, ...request }));
    const head = Buffer.alloc(4);
    head.writeUInt32BE(body.length);
    const parts = [];
    let size = 0;
    const socket = net.connect(process.env.WORKBENCH_SOCKET ?? '');
    socket.on('connect', () => socket.write(Buffer.concat([head, body, content])));
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
  return turn(async () => { await exchange({ op: 'result', value: JSON.parse(json) }); }, true);
}

/** Calls a tool. */
function call(tool, args = {}, options = {}) {
  return turn(() => exchange({ op: 'call', name: String(tool), value: { args, ...options } }));
}

const DISPLAY = Symbol.for('Jupyter.display');

/** The ways to show a value, by MIME type. */
function bundle(value) {
  const names = value && typeof value === 'object' ? Object.keys(value) : [];
  if (names.length && names.every((name) => /^[\w.+-]+\/[\w.+-]+$/.test(name))) return value;
  if (typeof value?.[DISPLAY] === 'function') return value[DISPLAY]();
  const data = { 'text/plain': require('util').inspect(value) };
  if (value instanceof Uint8Array && value[0] === 0x89 && value[1] === 0x50 && value[2] === 0x4e) data['image/png'] = value;
  else if (isPlain(value, { left: 100_000 })) data['application/json'] = JSON.stringify(value);
  return data;
}

// isPlain: JSON has all of it. What refers to itself is as deep as no JSON is.
function isPlain(value, budget, depth = 0) {
  if (budget.left-- <= 0 || depth > MAX_DEPTH) return false;
  if (typeof value === 'string') return !HALF.test(value);
  if (value === null || typeof value === 'boolean') return true;
  if (typeof value === 'number') return Number.isFinite(value);
  if (typeof value !== 'object') return false;
  const kind = Object.getPrototypeOf(value);
  if (!Array.isArray(value) && kind !== null && Object.getPrototypeOf(kind) !== null) return false;
  if (typeof value.toJSON === 'function' || Object.getOwnPropertySymbols(value).length) return false;
  return Object.entries(value).every(([name, v]) => !HALF.test(name) && isPlain(v, budget, depth + 1));
}

/** Shows data by MIME type; kind is that of the display. */
function show(kind, data, { id, metadata } = {}) {
  const content = {};
  for (const [name, value] of Object.entries(data)) {
    if (value instanceof Uint8Array) content[name] = Buffer.from(value).toString(name.startsWith('text/') || name === 'image/svg+xml' ? 'utf8' : 'base64');
    else content[name] = typeof value === 'string' ? value : JSON.stringify(value);
  }
  let body = Buffer.from(JSON.stringify(content));
  while (body.length > MAX_DISPLAY) {
    const largest = Object.keys(content).reduce((a, b) => (content[b].length > content[a].length ? b : a));
    if (largest === 'text/plain') content[largest] = `${content[largest].slice(0, MAX_TEXT)}...`;
    else {
      delete content[largest];
      content['text/plain'] ??= `(${largest} is too large to be shown)`;
    }
    body = Buffer.from(JSON.stringify(content));
  }
  const call = turn(async () => { await exchange({ op: 'display', kind, size: body.length, id, metadata }, body); }, true);
  call.catch(() => {}); // a program need not wait for what it shows
  return call;
}

/**
 * Shows a value, or an object from MIME types to text or bytes as it is. With
 * options.id it can be updated later, with options.update it is.
 */
function display(value, options = {}) {
  return show(options.update ? 'update' : 'display', bundle(value), options);
}

module.exports = { save, result, display, call, WorkbenchError };
Object.defineProperties(module.exports, { show: { value: show }, bundle: { value: bundle }, settled: { value: settled }, isCall: { value: isCall } });
