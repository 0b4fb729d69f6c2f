import { spawn } from 'node:child_process';
import { Worker } from 'node:worker_threads';

const mode = process.argv.at(-1);
const say = (ok, why) => {
  process.stdout.write('\nVERDICT ' + JSON.stringify({ ok, why, data: {} }) + '\n', () => process.exit(0));
};

if (mode === 'processes') {
  let workers = 0, children = 0, refused = '';
  const held = [];
  const child = () => new Promise((resolve) => {
    let c;
    try {
      c = spawn('/bin/sleep', ['20'], { stdio: 'ignore' });
    } catch (e) {
      refused = e.code;
      return resolve(false);
    }
    c.on('error', (e) => { refused = e.code; resolve(false); });
    c.on('spawn', () => { children++; held.push(c); resolve(true); });
  });
  const worker = () => new Promise((resolve) => {
    let w;
    try {
      w = new Worker('setInterval(() => {}, 1000)', { eval: true, resourceLimits: { maxOldGenerationSizeMb: 8 } });
    } catch (e) {
      return resolve(false);
    }
    w.on('error', () => resolve(false));
    w.on('online', () => { workers++; resolve(true); });
  });
  for (let i = 0; i < 3; i++) await worker();
  while (children < P.tasks + 20 && await child());
  for (const c of held) c.kill('SIGKILL');
  const within = refused === 'EAGAIN' && children < P.tasks;
  say(within, `${workers} workers and ${children} children, then ${refused || 'no refusal'}`);
} else {
  // Memory of WebAssembly is outside the heap that Node bounds by itself.
  const held = [];
  let bytes = 0, refused = '';
  const target = P.memory + (64 << 20);
  try {
    while (bytes < target) {
      const m = new WebAssembly.Memory({ initial: 1, maximum: 4096 });
      m.grow(255);
      const view = new Uint8Array(m.buffer);
      for (let at = 0; at < view.length; at += 4096) view[at] = 1;
      held.push(view);
      bytes += view.length;
    }
  } catch (e) {
    refused = e.message;
  }
  say(bytes < target, `memory: ${bytes >> 20} MiB of WebAssembly, then ${refused || 'no refusal'}`);
}
