'use strict';
// Makes of a cell what can be run again and again: top-level declarations become
// assignments to properties of the global object, import declarations become
// imports where they stand, and the last expression becomes what the cell gives.
// Lines stay where they are.

const acorn = require('internal/deps/acorn/acorn/dist/acorn');

function parse(source, file) {
  try {
    return acorn.parse(source, { ecmaVersion: 'latest', sourceType: 'module', allowReturnOutsideFunction: false, allowHashBang: true, allowAwaitOutsideFunction: true });
  } catch (error) {
    if (!error.loc) throw error;
    const { line, column } = error.loc;
    const wrong = new SyntaxError(error.message.replace(/ \(\d+:\d+\)$/, ''));
    wrong.shown = `${file}:${line}\n${source.split('\n')[line - 1] ?? ''}\n${' '.repeat(column)}^\n\nSyntaxError: ${wrong.message}`;
    throw wrong;
  }
}

// bound lists the names that a pattern binds.
function bound(pattern, names) {
  switch (pattern?.type) {
    case 'Identifier': names.add(pattern.name); break;
    case 'ObjectPattern': for (const p of pattern.properties) bound(p.type === 'RestElement' ? p.argument : p.value, names); break;
    case 'ArrayPattern': for (const p of pattern.elements) bound(p, names); break;
    case 'AssignmentPattern': bound(pattern.left, names); break;
    case 'RestElement': bound(pattern.argument, names); break;
  }
}

class Edits {
  constructor(source) {
    this.source = source;
    this.list = [];
  }

  put(start, end, text) { this.list.push({ start, end, text }); }

  // blank takes a part out and leaves its lines.
  blank(start, end) { this.put(start, end, this.source.slice(start, end).replace(/[^\n]/g, '')); }

  text() {
    this.list.sort((a, b) => a.start - b.start || a.end - b.end);
    let out = '', at = 0;
    for (const e of this.list) {
      out += this.source.slice(at, e.start) + e.text;
      at = e.end;
    }
    return out + this.source.slice(at);
  }
}

// assign turns a declaration into assignments. where is 'statement', or the part
// of a loop's head that it is.
function assign(node, edits, names, where) {
  for (const d of node.declarations) bound(d.id, names);
  const first = node.declarations[0];
  if (where === 'each') { // for (var x of …)
    edits.put(node.start, first.start, '');
    return;
  }
  const statement = where === 'statement';
  edits.put(node.start, first.start, statement ? 'void (' : '(');
  for (const d of node.declarations) {
    if (!d.init) edits.put(d.end, d.end, node.kind === 'var' ? '' : ' = void 0');
  }
  const last = node.declarations.at(-1);
  edits.put(last.end, node.end, statement ? ');' : ')');
}

// vars finds what `var` declares inside of blocks: it belongs to the top level.
function vars(node, edits, names) {
  if (!node || typeof node.type !== 'string' || /Function|Class/.test(node.type)) return;
  switch (node.type) {
    case 'VariableDeclaration':
      if (node.kind === 'var') assign(node, edits, names, 'statement');
      return;
    case 'ForStatement':
      if (node.init?.type === 'VariableDeclaration') {
        if (node.init.kind === 'var') assign(node.init, edits, names, 'init');
      }
      vars(node.body, edits, names);
      return;
    case 'ForInStatement':
    case 'ForOfStatement':
      if (node.left.type === 'VariableDeclaration' && node.left.kind === 'var') assign(node.left, edits, names, 'each');
      vars(node.body, edits, names);
      return;
  }
  if (/Statement$|SwitchCase|CatchClause/.test(node.type)) {
    for (const key of ['body', 'consequent', 'alternate', 'block', 'handler', 'finalizer', 'cases']) {
      for (const child of [node[key]].flat()) vars(child, edits, names);
    }
  }
}

function importText(node, names) {
  const from = node.source.raw;
  const asked = [];
  const targets = [];
  for (const s of node.specifiers ?? []) {
    names.add(s.local.name);
    if (s.type === 'ImportNamespaceSpecifier') {
      targets.push(`${s.local.name} = __workbench_module`);
      continue;
    }
    const name = s.type === 'ImportDefaultSpecifier' ? 'default' : s.imported.name ?? s.imported.value;
    asked.push(name);
    targets.push(`${s.local.name} = __workbench_module[${JSON.stringify(name)}]`);
  }
  const options = node.attributes?.length ? `, { with: { ${node.attributes.map((a) => `${a.key.raw ?? a.key.name}: ${a.value.raw}`).join(', ')} } }` : '';
  return `{ const __workbench_module = await __workbench_import(${from}, ${JSON.stringify(asked)}${options}); ${targets.map((t) => `${t};`).join(' ')} }`;
}

function rewrite(source, file) {
  const tree = parse(source, file);
  const edits = new Edits(source);
  const names = new Set();
  const functions = [];
  let imports = '';
  if (source.startsWith('#!')) edits.put(0, 2, '//');

  const declaration = (node, from) => {
    switch (node.type) {
      case 'VariableDeclaration':
        if (from !== node.start) edits.put(from, node.start, '');
        assign(node, edits, names, 'statement');
        return;
      case 'FunctionDeclaration': {
        if (!node.id) return;
        names.add(node.id.name);
        functions.push({ text: `${node.id.name} = ${source.slice(node.start, node.end)}`, line: source.slice(0, node.start).split('\n').length });
        edits.blank(from, node.end);
        return;
      }
      case 'ClassDeclaration':
        if (!node.id) return;
        names.add(node.id.name);
        edits.put(from, node.start, `void (${node.id.name} = `);
        edits.put(node.end, node.end, ');');
        return;
    }
  };

  for (const node of tree.body) {
    switch (node.type) {
      case 'ImportDeclaration':
        imports += importText(node, names);
        edits.blank(node.start, node.end);
        break;
      case 'ExportNamedDeclaration':
        if (node.declaration) declaration(node.declaration, node.start);
        else {
          if (node.source) imports += importText({ source: node.source }, names);
          edits.blank(node.start, node.end);
        }
        break;
      case 'ExportAllDeclaration':
        imports += importText({ source: node.source }, names);
        edits.blank(node.start, node.end);
        break;
      case 'ExportDefaultDeclaration':
        if (/^(Function|Class)Declaration$/.test(node.declaration.type) && node.declaration.id) declaration(node.declaration, node.start);
        else edits.put(node.start, node.declaration.start, 'void ');
        break;
      case 'VariableDeclaration':
      case 'FunctionDeclaration':
      case 'ClassDeclaration':
        declaration(node, node.start);
        break;
      default:
        vars(node, edits, names);
    }
  }
  const last = tree.body.at(-1);
  if (last?.type === 'ExpressionStatement') { // a text alone is one too, and no directive to anybody
    edits.put(last.start, last.start, 'return { value: (');
    edits.put(last.expression.end, last.end, `${source.slice(last.expression.end, last.end).replace(/;\s*$/, '')}) };`);
  }
  return { names: [...names], functions, body: imports + edits.text() };
}

module.exports = { rewrite };
