'use strict';
// The JavaScript interpreter of a context: it lives from cell to cell.
//
// The driver becomes it when the guest says so. A thread of its own reads the
// cells on descriptor 4, see cellMessage in the guest, so that an interrupt gets
// through when the program does not let go of the main one; descriptor 5 takes
// "=<number> <exit code>". What a cell declares at its top level are properties
// of the global object: later cells see it and may declare it again.

const fs = require('fs');
const path = require('path');
const util = require('util');
const vm = require('vm');
const Module = require('module');
const { Worker } = require('worker_threads');
const { rewrite } = require('/run/workbench/lib/kernel_rewrite.cjs');

const CONTROL = 4;
const REPORT = 5;
const WORKSPACE = '/mnt/files';
const HELPER = '/run/workbench/lib/js/workbench/index.cjs';
const BLOCKED = 150; // ms without an answer to an interrupt until the main thread is stopped

// Runs in the thread that reads.
const READER = `
const { parentPort, workerData } = require('worker_threads');
const inspector = require('inspector');
const net = require('net');
const seen = new Int32Array(workerData);
let rest = Buffer.alloc(0), session;
function interrupt() {
  const before = Atomics.load(seen, 0);
  parentPort.postMessage({ interrupt: true });
  setTimeout(() => {
    if (Atomics.load(seen, 0) !== before) return;
    if (!session) { session = new inspector.Session(); session.connectToMainThread(); }
    session.post('Runtime.terminateExecution', () => {});
  }, ${BLOCKED});
}
const input = new net.Socket({ fd: ${CONTROL}, readable: true, writable: false });
input.on('data', (part) => {
  rest = rest.length ? Buffer.concat([rest, part]) : part;
  while (rest.length >= 4 && rest.length >= 4 + rest.readUInt32BE(0)) {
    const size = rest.readUInt32BE(0);
    let at = 4;
    const text = () => { const n = rest.readUInt32BE(at); at += 4 + n; return rest.toString('utf8', at - n, at); };
    const number = rest.readUInt32BE(at);
    at += 4;
    if (number === 0) interrupt();
    else parentPort.postMessage({ number, token: text(), name: text(), language: text(), source: text() });
    rest = rest.subarray(4 + size);
  }
});
input.on('end', () => process.exit());
input.on('error', () => process.exit());
`;

const seen = new Int32Array(new SharedArrayBuffer(4));
let current; // the cell under way
let helper;

function readFully(size) {
  const buffer = Buffer.alloc(size);
  for (let at = 0; at < size;) {
    const n = fs.readSync(CONTROL, buffer, at, size - at, null);
    if (n === 0) process.reallyExit(0);
    at += n;
  }
  return buffer;
}

function readStart() {
  const raw = readFully(readFully(4).readUInt32BE());
  let at = 0;
  const number = () => raw.readUInt32BE((at += 4) - 4);
  const text = () => { const n = number(); return raw.toString('utf8', at, at += n); };
  const start = { directory: text(), env: [] };
  for (let n = number(); n > 0; n--) start.env.push([text(), text()]);
  return start;
}

// declare makes a name a plain property of the global object: what is there may
// be an accessor that ignores assignments.
function declare(name) {
  const had = Object.getOwnPropertyDescriptor(globalThis, name);
  if (had && ('value' in had ? had.writable : false)) return;
  if (had && !had.configurable) return;
  Object.defineProperty(globalThis, name, { value: undefined, writable: true, configurable: true, enumerable: true });
}

function compile(text, cell, lineOffset, columnOffset) {
  return new vm.Script(text, {
    filename: cell.file, lineOffset, columnOffset,
    importModuleDynamically: vm.constants?.USE_MAIN_CONTEXT_DEFAULT_LOADER ?? ((specifier) => cell.import(specifier)),
  });
}

// importer gives the cell's import declarations what they ask for, or says what a
// module lacks, as the loader does.
function importer(cell) {
  const load = compile('((specifier, options) => import(specifier, options))', cell).runInThisContext();
  return async (specifier, names, options) => {
    const found = await load(specifier, options);
    for (const name of names) {
      if (!(name in found) && cell.language !== 'typescript') {
        throw new SyntaxError(`The requested module '${specifier}' does not provide an export named '${name}'`);
      }
    }
    return found;
  };
}

async function evaluate(cell) {
  const plan = rewrite(cell.source, cell.file);
  for (const name of plan.names) declare(name);
  for (const f of plan.functions) compile(f.text, cell, f.line - 1, 0).runInThisContext();
  const head = '(async (__workbench_import) => {';
  const body = compile(`${head}${plan.body}\n})`, cell, 0, -head.length).runInThisContext();
  return body(importer(cell));
}

// withoutKernel takes the frames of everything but the program out of a trace.
function withoutKernel(text) {
  return text.split('\n').filter((line) => !/^\s+at .*(\/run\/workbench\/lib\/|node:)/.test(line)).join('\n');
}

function describe(error) {
  try {
    if (error instanceof SyntaxError && error.shown) return error.shown;
    if (util.types.isNativeError(error)) return withoutKernel(util.inspect(error));
    return `Uncaught ${util.inspect(error)}`;
  } catch {
    return 'Uncaught error that cannot be shown';
  }
}

// say asks the program's own error, which may throw instead.
function say(ask, otherwise) {
  try {
    return String(ask());
  } catch {
    return otherwise;
  }
}

// complain prints and shows an error; the cell has failed.
async function complain(cell, error) {
  cell.code = 1;
  const text = describe(error);
  fs.writeSync(2, `${text}\n`);
  const native = util.types.isNativeError(error);
  const told = {
    ename: native ? say(() => error.name, 'Error') : 'Error',
    evalue: native ? say(() => error.message, '') : say(() => util.inspect(error), 'it cannot be shown'),
    traceback: text.split('\n'),
  };
  if (say(() => error?.code, '') === 'EMFILE') try { fs.writeSync(REPORT, 'open_files\n'); } catch { /* it is closed */ }
  await show(cell, 'error', { 'application/json': JSON.stringify(told), 'text/plain': `${told.ename}: ${told.evalue}` });
}

async function show(cell, kind, data) {
  try {
    await helper.show(kind, data);
  } catch (error) {
    fs.writeSync(2, `workbench: the value could not be shown: ${say(() => error.message, '')}\n`);
  }
}

// finish tells the guest once how a cell ended. An interrupt does it too, for a
// cell whose own way to its end was cut off.
function finish(cell) {
  if (cell.finished) return;
  cell.finished = true;
  if (current === cell) current = undefined;
  fs.writeSync(REPORT, `=${cell.number} ${cell.code}\n`);
}

async function run(cell) {
  current = cell;
  process.env.WORKBENCH_TOKEN = cell.token;
  cell.file = path.join(WORKSPACE, cell.name);
  cell.code = 0;
  const stopped = new Promise((_, reject) => { cell.stop = reject; });
  stopped.catch(() => {});
  try {
    const last = await Promise.race([evaluate(cell), stopped]);
    let value = last?.value;
    if (helper.isCall(value)) value = await Promise.race([value, stopped]); // as if it were awaited
    if (value !== undefined) await show(cell, 'result', helper.bundle(value));
    await Promise.race([helper.settled(), stopped]);
    await new Promise((go) => setImmediate(go)); // rejections that nobody handles show by then
    await cell.complaints;
  } catch (error) {
    if (cell.interrupted && error === cell.interrupted) cell.code = 130; // a program may throw undefined
    else {
      await complain(cell, error);
      await Promise.race([helper.settled(), stopped]).catch(() => {});
    }
  }
  finish(cell);
}

function interrupt() {
  Atomics.add(seen, 0, 1);
  setImmediate(() => forget());
  const cell = current;
  if (!cell) return;
  cell.interrupted = new Error('interrupted');
  cell.stop(cell.interrupted);
  helper.abandon();
  // Where the cell was stopped in the middle, nothing of run goes on.
  setTimeout(() => { cell.code = 130; finish(cell); }, 50);
}

// stray takes an error that no cell waits for.
function stray(error) {
  const cell = current;
  if (!cell) {
    fs.writeSync(2, `${describe(error)}\n`);
    return;
  }
  cell.code = 1;
  cell.complaints = Promise.resolve(cell.complaints).then(() => complain(cell, error));
}

// rehearse goes once through what a cell goes through. How cells import is called
// experimental, which is nothing that a program need hear of.
function rehearse() {
  const { emitWarning } = process;
  process.emitWarning = () => {};
  const cell = { file: path.join(WORKSPACE, 'cell.mjs'), source: "import { basename } from 'node:path'; class C { }; const a = basename('/b'); a", language: 'javascript' };
  const { names } = rewrite(cell.source, cell.file);
  evaluate(cell).finally(() => {
    for (const name of names) delete globalThis[name];
    process.emitWarning = emitWarning;
    ready();
  });
}

// allowTermination has Node go on when a program was stopped inside of a callback,
// which leaves its record of asynchronous contexts behind.
function allowTermination() {
  try {
    const { async_hook_fields: fields, constants, clearAsyncIdStack } = require('internal/test/binding').internalBinding('async_wrap');
    fields[constants.kCheck] = 0;
    forget = clearAsyncIdStack;
  } catch { /* another version of Node: such a program ends its context */ }
}

let forget = () => {};
let waitFor = 2; // the rehearsal and the reader
function ready() {
  if (--waitFor === 0) fs.writeSync(REPORT, 'began\n');
}

module.exports = function main(driver) {
  const start = readStart();
  for (const [key, value] of start.env) process.env[key] = value;
  if (process.env.WORKBENCH_PACKAGES) require('/run/workbench/lib/packages.cjs').use();
  try {
    process.chdir(start.directory);
  } catch (error) {
    fs.writeSync(2, `workbench: cannot enter ${start.directory}: ${error.code}\n`);
    process.exit(126);
  }
  process.argv = [process.execPath];
  helper = require(HELPER);
  const here = Module.createRequire(path.join(WORKSPACE, 'cell.mjs'));
  for (const [name, value] of Object.entries({ require: here, workbench: helper, arc0: helper, __filename: path.join(WORKSPACE, 'cell.mjs'), __dirname: WORKSPACE })) {
    Object.defineProperty(globalThis, name, { value, writable: true, configurable: true, enumerable: false });
  }
  driver.reportAtExit({ settled: true });
  process.on('uncaughtException', stray);
  process.on('unhandledRejection', stray);
  process.on('SIGINT', () => {}); // the guest interrupts the cell by itself
  rehearse();
  allowTermination();
  const reader = new Worker(READER, { eval: true, workerData: seen.buffer, stdout: false, stderr: false });
  reader.on('message', (message) => {
    if (message.interrupt) interrupt();
    else run(message);
  });
  reader.on('error', () => process.reallyExit(1));
  reader.on('online', ready);
};
