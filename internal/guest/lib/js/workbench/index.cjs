'use strict';
// The helper library of code in a sandbox. Every function returns a promise; what
// is called without await still completes before the program ends, but for what
// process.exit cuts off.

const fs = require('fs');
const net = require('net');
const path = require('path');

const PARALLEL = 16; // calls at once; more wait here
const MAX_REQUEST = 384 << 10;
const MAX_ANSWER = 1 << 20;
const MAX_WAIT = 10_000; // ms that one look at a receipt takes at most
const PAUSE = 500; // ms between two looks at least

/**
 * What was refused: code for programs, hint for people; field is the argument at
 * fault, receipt that of the call, where there is one.
 */
class WorkbenchError extends Error {
  constructor({ code, detail, hint, field, receipt }) {
    super(hint ? `${detail} (${hint})` : detail);
    this.name = 'WorkbenchError';
    this.code = code;
    this.detail = detail;
    this.hint = hint;
    if (field !== undefined) this.field = field;
    if (receipt !== undefined) this.receipt = receipt;
  }
}

const MAX_DISPLAY = 16 << 20; // of one display, as JSON
const MAX_TEXT = 1 << 20; // of a text that has to be cut
const MAX_DEPTH = 1000; // of what is shown as JSON
const HALF = /\p{Surrogate}/u; // of a pair, by itself: no text on the wire has it

const answers = new WeakSet(); // the promises that callers got

let lane = newLane(); // that of the cell under way, or of the program

/** Where calls wait their turn. */
function newLane() {
  return {
    active: 0,
    waiting: [],
    calls: new Set(),
    shown: Promise.resolve(), // the last display or result: they come in order
  };
}

function turn(work, ordered = false) {
  const mine = lane;
  const call = ordered ? mine.shown.then(() => inTurn(work, mine)) : inTurn(work, mine);
  const over = () => mine.calls.delete(call);
  mine.calls.add(call);
  const ended = call.then(over, over);
  if (ordered) mine.shown = ended;
  const answer = call.then((value) => value); // whose failure is the caller's to look at
  answers.add(answer);
  return answer;
}

/** What a call gives that cannot be made. */
function refuse(error) {
  return turn(async () => { throw error; });
}

/** Whether a value is what one of the library's functions returned. */
function isCall(value) {
  return typeof value === 'object' && value !== null && answers.has(value);
}

/** Resolves once no call is under way. */
async function settled() {
  while (lane.calls.size) await Promise.allSettled(lane.calls);
}

/**
 * Makes what is under way nobody's, and takes back what has not begun: the cell
 * that asked for it is over. Its promises stay as they are.
 */
function abandon() {
  lane.waiting.length = 0;
  lane = newLane();
}

async function inTurn(work, mine) {
  if (mine !== lane) await forever();
  if (mine.active >= PARALLEL) await new Promise((go) => mine.waiting.push(go));
  else mine.active++;
  try {
    return await work();
  } finally {
    const next = mine.waiting.shift();
    if (next) next();
    else mine.active--;
    if (mine !== lane) await forever();
  }
}

function forever() {
  return new Promise(() => {});
}

/**
 * A request as it is sent. Its token is that of the run, or the cell, that makes
 * it, whenever it is sent.
 */
function encode(request) {
  const body = Buffer.from(JSON.stringify({ token: process.env.WORKBENCH_TOKEN, ...request }));
  if (body.length <= MAX_REQUEST) return body;
  throw new WorkbenchError({ code: 'body_too_large', detail: `the call has ${body.length} bytes, ${MAX_REQUEST} are allowed`, hint: 'save what is large as a file' });
}

const unreachable = (error) => new WorkbenchError({ code: 'unavailable', detail: `the sandbox's broker cannot be reached: ${error.message}` });
const ended = () => new WorkbenchError({ code: 'unavailable', detail: 'the sandbox\'s broker ended the call' });

/** A connection; took gets each answer, as it comes, and over why there are no more. */
function connect(to, took, over) {
  const socket = net.connect(to);
  let raw = Buffer.alloc(0);
  let why = ended();
  socket.on('data', (data) => {
    raw = raw.length ? Buffer.concat([raw, data]) : data;
    while (raw.length >= 4) {
      const size = raw.readUInt32BE();
      if (size > MAX_ANSWER) return socket.destroy();
      if (raw.length < 4 + size) return;
      const answer = raw.subarray(4, 4 + size).toString();
      raw = raw.subarray(4 + size);
      took(JSON.parse(answer));
    }
  });
  socket.on('error', (error) => { why = unreachable(error); });
  socket.on('close', () => over(why));
  return socket;
}

function framed(body, ...more) {
  const head = Buffer.alloc(4);
  head.writeUInt32BE(body.length);
  return Buffer.concat([head, body, ...more]);
}

let line = null; // the connection that carries calls at once, while its cell lives

function theLine() {
  const { WORKBENCH_SOCKET: to = '', WORKBENCH_TOKEN: token } = process.env;
  if (line && line.to === to && line.token === token && line.socket.writable) return line;
  if (line && !line.asked.size) line.socket.destroy();
  const mine = { to, token, asked: new Map(), number: 0 };
  mine.socket = connect(to, (answer) => {
    const asked = mine.asked.get(answer.n);
    if (!asked) return;
    mine.asked.delete(answer.n);
    if (!mine.asked.size) mine.socket.unref(); // a program may end
    asked.took(answer);
  }, (why) => {
    if (line === mine) line = null;
    for (const { over } of mine.asked.values()) over(why);
    mine.asked.clear();
  });
  return line = mine;
}

/** Sends a request and gives the answer. One with content has a connection of its own. */
function exchange(body, content) {
  return new Promise((resolve, reject) => {
    const took = (answer) => {
      if (answer.error) reject(new WorkbenchError(answer.error));
      else resolve(answer.result ?? null);
    };
    if (content) {
      connect(process.env.WORKBENCH_SOCKET ?? '', took, reject).write(framed(body, content));
      return;
    }
    const mine = theLine();
    const { socket, asked } = mine;
    const number = ++mine.number;
    if (!asked.size) socket.ref();
    asked.set(number, { took, over: reject });
    if (!socket.writableCorked) {
      socket.cork();
      process.nextTick(() => socket.uncork());
    }
    socket.write(framed(Buffer.concat([Buffer.from(`{"n":${number},`), body.subarray(1)])));
  });
}

/**
 * Sends what the host alone understands; shape makes of the answer what the
 * promise gives. The arguments are taken as they are now.
 */
function ask(op, value, shape) {
  let body;
  try {
    body = encode({ op, value: value() });
  } catch (error) {
    return refuse(error);
  }
  return turn(async () => shape(await exchange(body)));
}

function text(value) {
  return value === undefined || value === null ? undefined : String(value);
}

/** The options, of which there are no others than the known ones. */
function checked(options, ...known) {
  for (const name of Object.keys(options ?? {})) {
    if (!known.includes(name)) throw new TypeError(`there is no option ${name} here, there ${known.length > 1 ? 'are' : 'is'} ${known.join(', ')}`);
  }
  return options ?? {};
}

// What to do about a call that has not succeeded.
const NEXT = {
  pending_approval: 'somebody has to approve it; workbench.receipt(id, { wait: 60 }) waits for that',
  executing: 'workbench.receipt(id, { wait: 60 }) waits for its end',
  unknown: 'it may have been executed: look before you repeat it',
};

/** A receipt of a call: what the host gave, and raiseForStatus. */
function asReceipt(data) {
  if (typeof data !== 'object' || data === null) return data;
  return Object.defineProperty(data, 'raiseForStatus', {
    value() {
      if (this.status === 'succeeded') return this;
      const { code = this.status, detail = `the call of ${this.tool} is ${String(this.status).replace('_', ' ')}`, hint = NEXT[this.status], field } = this.error ?? {};
      throw new WorkbenchError({ code, detail, hint, field, receipt: this });
    },
    configurable: true, writable: true,
  });
}

/**
 * Calls a tool, app.tool, and gives the receipt, whatever became of the call.
 * options.version is the exact one that the session may call, and can be left out
 * where there is only one; options.connectionAlias, or connection for short, names
 * one of the session's connections.
 */
function call(tool, args = {}, options = {}) {
  return ask('call', () => {
    const { version, connectionAlias, connection } = checked(options, 'version', 'connectionAlias', 'connection');
    return { tool: String(tool), version: text(version), connection: text(connectionAlias ?? connection), args: args ?? {} };
  }, asReceipt);
}

/**
 * The receipt of an earlier call, or of its id, as it is now. With options.wait
 * it is waited until its status is final, for so many seconds at most.
 */
function receipt(of, options = {}) {
  let id, wait, token;
  try {
    id = typeof of === 'string' ? of : String(of.id);
    wait = Number(checked(options, 'wait').wait ?? 0) * 1000;
    token = process.env.WORKBENCH_TOKEN;
  } catch (error) {
    return refuse(error);
  }
  return turn(async () => {
    for (const end = performance.now() + wait; ;) {
      const began = performance.now();
      const waitMs = Math.floor(Math.min(Math.max(0, end - began), MAX_WAIT));
      const found = await exchange(encode({ op: 'receipt', value: { id, waitMs }, token }));
      const left = end - performance.now();
      if (!(left > 0) || !['executing', 'pending_approval'].includes(found?.status)) return asReceipt(found);
      await new Promise((go) => setTimeout(go, Math.min(left, began + PAUSE - performance.now()))); // of a host that does not wait itself
    }
  });
}

const items = (answer) => answer.items;
const output = (answer) => answer.output;

/** The tools that this session may call. */
const tools = {
  /** Tools that fit, best first: name, version, description, connections. */
  search(query, options = {}) {
    return ask('tools.search', () => ({ query: String(query), limit: checked(options, 'limit').limit ?? 10 }), items);
  },
  /** What a tool takes and gives: inputSchema, outputSchema, annotations and more. */
  schema(name, options = {}) {
    return ask('tools.schema', () => ({ tool: String(name), version: text(checked(options, 'version').version) }), (answer) => answer);
  },
};

const task = (name, input, more) => ask('ai', () => ({ task: name, input: String(input), ...more() }), output);
const summarise = (input, options = {}) => task('summarise', input, () => ({ words: checked(options, 'words').words }));

/** Asks the model of this server. */
const ai = {
  /** What the model says to a prompt. */
  complete(prompt, options = {}) {
    return task('complete', prompt, () => {
      const { system, maxTokens } = checked(options, 'system', 'maxTokens');
      return { system: text(system), maxTokens };
    });
  },
  /** A summary, of about options.words words. */
  summarise,
  summarize: summarise,
  /** The one of the labels that fits best. */
  classify: (input, labels) => task('classify', input, () => ({ labels: Array.from(labels, String) })),
  /** What the text says, as an object that is valid against the JSON Schema. */
  extract: (input, schema) => task('extract', input, () => ({ schema })),
};

/** Looks for pages in the web. */
const web = {
  /** Pages that fit, best first: title, url, snippet. */
  search(query, options = {}) {
    return ask('web.search', () => ({ query: String(query), limit: checked(options, 'limit').limit ?? 5 }), items);
  },
};

function packageName(name) {
  if (typeof name !== 'string') throw new TypeError(`a package is named by a text, not by ${name}`);
  return name;
}

/** Packages from the registries that this server asks. */
const packages = {
  /**
   * Installs packages, such as "lodash" or "lodash@4.17.21", with what they need:
   * for this program, for those that it starts, and for later runs of the session.
   * options.manager is npm or pip. Gives the set: name, path, lock, bytes.
   */
  install(wanted, options = {}) {
    return ask('packages', () => ({ manager: text(checked(options, 'manager').manager) ?? 'npm', packages: [wanted].flat().map(packageName) }), (answer) => {
      require('/run/workbench/lib/packages.cjs').use(answer.path);
      return answer;
    });
  },
};

/** What a host answered: status, headers (names in lower case) and body. */
class FetchedResponse {
  constructor(status, headers, body) {
    Object.assign(this, { status, headers, body, ok: status >= 200 && status < 300 });
  }
  text() { return this.body.toString(); }
  json() { return JSON.parse(this.body.toString()); }
}

/**
 * Makes a request to a host that the rules let this run reach. options: method,
 * headers, body (a string or bytes), json, and connection, one of the session's,
 * whose credentials the server places. Redirects are not followed.
 */
function request(url, options = {}) {
  let first, token;
  try {
    const { method, headers = {}, body, json, connection } = checked(options, 'method', 'headers', 'body', 'json', 'connection');
    const all = Object.fromEntries(Object.entries(headers).map(([name, value]) => [name, String(value)]));
    let content = body;
    if (json !== undefined) {
      content = JSON.stringify(json);
      if (!Object.keys(all).some((name) => name.toLowerCase() === 'content-type')) all['Content-Type'] = 'application/json';
    }
    token = process.env.WORKBENCH_TOKEN;
    first = encode({ op: 'fetch', value: { url: String(url), method: text(method), headers: all, connection: text(connection),
      body: content === undefined || content === null ? undefined : Buffer.from(content).toString('base64') } });
  } catch (error) {
    return refuse(error);
  }
  return turn(async () => {
    const answer = await exchange(first);
    const parts = [Buffer.from(answer.body ?? '', 'base64')];
    for (let more = answer; more.more;) {
      more = await exchange(encode({ op: 'fetch', value: { handle: more.handle }, token }));
      parts.push(Buffer.from(more.body ?? '', 'base64'));
    }
    return new FetchedResponse(answer.status, answer.headers ?? {}, Buffer.concat(parts));
  });
}

const LIBRARY = path.join(__dirname, '..', '..', 'python', 'workbench_extract.py');

/**
 * The text of a document, its Markdown, or its tables, each { name, rows }; read by
 * Python, here in the sandbox. options.format: text, markdown or tables.
 */
function extract(file, options = {}) {
  let args;
  try {
    args = [LIBRARY, '--json', '--format', text(checked(options, 'format').format) ?? 'text', '--', path.resolve(String(file))];
  } catch (error) {
    return refuse(error);
  }
  return turn(() => new Promise((resolve, reject) => {
    require('child_process').execFile('python3', args, { maxBuffer: 256 << 20 }, (error, stdout) => {
      try {
        const answer = JSON.parse(stdout);
        if (answer.error) reject(new WorkbenchError(answer.error));
        else resolve(answer.result);
      } catch {
        reject(new WorkbenchError({ code: 'unavailable', detail: error?.code === 'ENOENT' ? 'this sandbox image has no Python, which reads documents' : 'the document could not be read' }));
      }
    });
  }));
}

/**
 * Keeps a file beyond the session. With content (a string, bytes, a Blob, a
 * stream, or anything iterable of those) it is written first, at its name in
 * the workspace.
 */
function save(name, content) {
  const file = path.resolve(String(name));
  const request = encode({ op: 'save', path: Buffer.from(file).toString('base64') });
  return turn(async () => {
    if (content !== undefined) {
      if (typeof content?.arrayBuffer === 'function') content = Buffer.from(await content.arrayBuffer());
      if (content instanceof ArrayBuffer) content = Buffer.from(content);
      await fs.promises.mkdir(path.dirname(file), { recursive: true });
      await fs.promises.writeFile(file, content);
    }
    return exchange(request);
  });
}

/** Sets the run's structured result: any JSON value; the last one counts. */
function result(value) {
  let request;
  try {
    if (JSON.stringify(value) === undefined) throw new TypeError('the result is not a JSON value');
    request = encode({ op: 'result', value });
  } catch (error) {
    return refuse(error);
  }
  return turn(async () => { await exchange(request); }, true);
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
  const token = process.env.WORKBENCH_TOKEN;
  const call = turn(async () => { await exchange(encode({ op: 'display', kind, size: body.length, id, metadata, token }), body); }, true);
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

module.exports = { call, receipt, tools, ai, web, packages, fetch: request, extract, save, result, display, WorkbenchError };
for (const [name, value] of Object.entries({ show, bundle, settled, isCall, abandon })) Object.defineProperty(module.exports, name, { value }); // of the kernel
