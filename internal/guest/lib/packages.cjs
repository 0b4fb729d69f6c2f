'use strict';
// Where packages are that code has installed: require and import find them, here
// and in interpreters that this one starts.

const Module = require('module');

const ROOT = '/opt/workbench/packages/';

const places = () => (process.env.WORKBENCH_PACKAGES ?? '').split(':').filter(Boolean);

function lead(variable, more) {
  const rest = (process.env[variable] ?? '').split(':').filter((p) => p && !p.startsWith(ROOT));
  process.env[variable] = [...more, ...rest].join(':');
}

/** Adds sets to those that there are, the most important first. */
function use(...more) {
  const had = places();
  const all = [...more.filter((place) => !had.includes(place)), ...had];
  if (!all.length) return;
  process.env.WORKBENCH_PACKAGES = all.join(':');
  lead('NODE_PATH', all.map((place) => `${place}/node/node_modules`));
  lead('PYTHONPATH', all.map((place) => `${place}/python`));
  lead('PATH', all.flatMap((place) => [`${place}/python/bin`, `${place}/node/node_modules/.bin`]));
  Module._initPaths();
}

module.exports = { use, places };
