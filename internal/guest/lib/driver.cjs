'use strict';
// Runs one program as Node's main module, and reports how it ended.
//
// Started by the guest before the program is known: it waits for it on
// descriptor 4, so that an interpreter that waited already and one that starts
// cold behave alike. The program is an ES module at its place in the workspace,
// from memory; or a CommonJS module, where it is written as one. The exit code
// goes to descriptor 5 before the interpreter is torn down.

const fs = require('fs');
const vm = require('vm');
const Module = require('module');
const path = require('path');
const { pathToFileURL } = require('url');
const packages = require('/run/workbench/lib/packages.cjs');

const CONTROL = 4;
const REPORT = 5;
const BECOME_KERNEL = 0xffffffff; // see becomeKernel in the guest
const WORKSPACE = '/mnt/files';
const HELPER = '/run/workbench/lib/js/workbench/index.mjs';

const loader = findLoader();
const reallyExit = process.reallyExit;

// findLoader gets at the module loader. What it uses is Node's own way to run
// `--input-type=module`; where a version keeps it elsewhere, run() falls back to
// importing the source from its file.
function findLoader() {
  let found;
  try {
    require('internal/modules/esm/resolve'); // before the loader's other parts, which need it loaded
    found = require('internal/modules/esm/loader').getOrInitializeCascadedLoader();
  } catch {
    try { found = require('internal/process/esm_loader').esmLoader; } catch { /* another version */ }
  }
  return typeof found?.eval === 'function' ? found : undefined;
}

function readControl() {
  const read = (size) => {
    const buffer = Buffer.alloc(size);
    for (let at = 0, n; at < size; at += n) {
      if ((n = fs.readSync(CONTROL, buffer, at, size - at, null)) === 0) return buffer.subarray(0, at);
    }
    return buffer;
  };
  const head = read(4);
  if (head.length < 4) return reallyExit.call(process, 125); // given up
  if (head.readUInt32BE() === BECOME_KERNEL) return undefined;
  const raw = read(head.readUInt32BE());
  fs.closeSync(CONTROL);
  let at = 0;
  const number = () => raw.readUInt32BE((at += 4) - 4);
  const text = () => {
    const size = number();
    return raw.toString('utf8', at, at += size);
  };
  const job = { name: text(), path: text(), directory: text(), args: [], env: [] };
  for (let n = number(); n > 0; n--) job.args.push(text());
  for (let n = number(); n > 0; n--) job.env.push([text(), text()]);
  job.source = text();
  return job;
}

function report(code) {
  try { fs.writeSync(REPORT, `${code & 0xff}\n`); } catch { /* the guest sees the process end */ }
}

// met says that a limit ended the program, which no kernel counts.
function met(limit) {
  try { fs.writeSync(REPORT, `${limit}\n`); } catch { /* the guest sees the process end */ }
}

// reportAtExit tells the guest the exit code after the last exit handler has
// run. An error that nobody caught is printed only after them, so there the
// process ends by itself.
function reportAtExit(state) {
  const emit = process.emit;
  let dying = false;
  const hooked = function (event, ...args) {
    if (event === 'uncaughtExceptionMonitor') {
      dying = process.listenerCount('uncaughtException') === 0;
      if (dying && args[0]?.code === 'EMFILE') met('open_files');
      withoutDriver(args[0]);
    }
    const result = Reflect.apply(emit, this, [event, ...args]);
    if (event === 'exit' && this === process && !dying) {
      let code = Number(process.exitCode ?? args[0] ?? 0);
      if (!state.settled && code === 0) {
        process.stderr.write('Warning: the program ended while a top-level await was still waiting\n');
        code = 13;
      }
      report(code);
      Reflect.apply(reallyExit, process, [code]);
    }
    return result;
  };
  Object.defineProperty(process, 'emit', { value: hooked, writable: true, configurable: true, enumerable: false });
  const exit = process.exit;
  Object.defineProperty(process, 'exit', {
    value: function (code) {
      state.settled = true; // ends on purpose, whatever still waits
      return Reflect.apply(exit, this, arguments.length ? [code] : []);
    },
    writable: true, configurable: true, enumerable: true,
  });
  process.reallyExit = function (code) {
    report(code || 0);
    return Reflect.apply(reallyExit, process, [code || 0]);
  };
}

// findHelper makes `workbench` and installed packages importable from anywhere.
function findHelper(loader) {
  const helper = { __proto__: null, url: pathToFileURL(HELPER).href, format: 'module' };
  const bare = (s) => /^(@[\w.-]+\/)?[\w][\w.-]*(\/|$)/.test(s);
  const own = (s) => s === 'workbench' || s === 'arc0';
  for (const method of ['resolve', 'resolveSync']) {
    const original = loader[method];
    if (typeof original !== 'function') continue;
    const again = (error, self, specifier, rest) => {
      if (error?.code !== 'ERR_MODULE_NOT_FOUND' || !bare(specifier)) throw error;
      const places = packages.places();
      const next = (at) => {
        if (at === places.length) throw error;
        try {
          const found = Reflect.apply(original, self, [specifier, pathToFileURL(`${places[at]}/node/index.mjs`).href, ...rest]);
          return typeof found?.then === 'function' ? found.catch(() => next(at + 1)) : found;
        } catch { return next(at + 1); }
      };
      return next(0);
    };
    loader[method] = function (specifier, parent, ...rest) {
      if (own(specifier)) return helper;
      let found;
      try {
        found = Reflect.apply(original, this, [specifier, parent, ...rest]);
      } catch (error) {
        return again(error, this, specifier, rest);
      }
      return typeof found?.then === 'function' ? found.catch((error) => again(error, this, specifier, rest)) : found;
    };
  }
}

function hidden(target, name, descriptor) {
  Object.defineProperty(target, name, { configurable: true, enumerable: false, ...descriptor });
}

// isCommonJS: it can be compiled as such, and uses something only that has.
function isCommonJS(source) {
  if (!/\b(require|module|exports|__filename|__dirname)\b/.test(source)) return false;
  try {
    new vm.Script(`(function (exports, require, module, __filename, __dirname) {${source.replace(/^#!.*/, '')}\n})`);
    return true;
  } catch {
    return false;
  }
}

function runCommonJS(source, filename) {
  const main = new Module(filename, null);
  main.id = '.';
  main.filename = filename;
  main.paths = Module._nodeModulePaths(path.dirname(filename));
  process.mainModule = main;
  Module._cache[filename] = main;
  main._compile(source.replace(/^#!.*/, ''), filename);
  main.loaded = true;
}

// withoutDriver takes the driver's frames out of a trace that will be printed.
function withoutDriver(error) {
  try {
    if (typeof error?.stack === 'string') {
      error.stack = error.stack.split('\n').filter((line) => !line.includes(__filename)).join('\n');
    }
  } catch { /* frozen, or not an error */ }
}

function run(job, state) {
  const filename = path.join(WORKSPACE, job.name);
  const require = Module.createRequire(filename);
  if (isCommonJS(job.source)) {
    state.settled = true;
    runCommonJS(job.source, filename);
    return;
  }
  // A module has none of these; a program that mixes styles finds them anyway.
  hidden(globalThis, 'require', { value: require, writable: true });
  hidden(globalThis, '__filename', { value: filename, writable: true });
  hidden(globalThis, '__dirname', { value: path.dirname(filename), writable: true });
  const running = loader
    ? loader.eval(job.source.replace(/^#!.*/, ''), pathToFileURL(filename).href, true)
    : import(pathToFileURL(job.path).href);
  // Nobody handles a failure: Node reports it as it would the main module's.
  running.finally(() => { state.settled = true; });
}

// rehearse touches what nearly every program needs first, while nobody waits
// for it: the module loader, the console, its streams. It leaves nothing behind.
async function rehearse() {
  const { stdout, stderr } = process;
  for (const stream of [stdout, stderr]) {
    stream.write('');
    stream.write = () => true;
  }
  console.log('%s %o', 'x', { a: [1, 'b', null], f() {} }, new Map([[1, new Date(0)]]));
  console.error(new Error('x'));
  delete stdout.write;
  delete stderr.write;
  const url = 'workbench:rehearsal';
  await loader?.eval("import { basename } from 'node:path'; await null; export default basename('/x');", url, false);
  loader?.loadCache?.delete?.(url);
  isCommonJS('module.exports = class { m() {} }');
}

function main() {
  process.execArgv = []; // workers and forks start as usual
  process.setSourceMapsEnabled?.(true);
  if (loader) findHelper(loader);
  // What was written is out when the program ends, also by process.exit.
  for (const stream of [process.stdout, process.stderr]) stream._handle?.setBlocking?.(true);
  const go = () => setImmediate(start); // not in a promise, where errors are rejections
  rehearse().then(go, go);
}

function start() {
  fs.writeSync(REPORT, 'ready\n');
  const job = readControl();
  if (!job) { // lives on, for cells
    require('/run/workbench/lib/kernel.cjs')({ reportAtExit });
    return;
  }
  if (job.directory !== WORKSPACE) {
    try {
      process.chdir(job.directory);
    } catch (error) {
      fs.writeSync(2, `workbench: cannot enter ${job.directory}: ${error.code}\n`);
      process.exit(126);
    }
  }
  for (const [key, value] of job.env) process.env[key] = value;
  if (process.env.WORKBENCH_PACKAGES) packages.use();
  process.argv = [process.execPath, path.join(WORKSPACE, job.name), ...job.args];
  let helper;
  const lazy = { get: () => helper ??= require('/run/workbench/lib/js/workbench/index.cjs'), set(value) { hidden(globalThis, 'workbench', { value, writable: true }); } };
  hidden(globalThis, 'workbench', lazy);
  hidden(globalThis, 'arc0', { ...lazy, set(value) { hidden(globalThis, 'arc0', { value, writable: true }); } });
  const state = { settled: false };
  reportAtExit(state);
  run(job, state);
}

main();
