// Holds an OpenAPI document to Redocly's strict rules and prints what breaks
// one, a line each. Usage: node lint.mjs FILE. Exit status 1 if anything does.
import { readFile } from "node:fs/promises";
import process from "node:process";
import { createConfig, lintFromString } from "@redocly/openapi-core";

const rules = {
  // An event's schema is named by x-item-schema, which the rule does not follow;
  // TestDocumentLint counts it.
  "no-unused-components": "off",
  // The document is relative to the server that serves it: its one server is /.
  "no-server-example.com": "error",
  "operation-4xx-response": "error",
  "operation-operationId-unique": "error",
  "operation-description": "error",
  "operation-tag-defined": "error",
  "paths-kebab-case": "off", // run_code is named by the tool it is
  "no-http-verbs-in-paths": "off",
  "no-invalid-media-type-examples": "error",
  "no-invalid-schema-examples": "error",
  "no-required-schema-properties-undefined": "error",
  "no-schema-type-mismatch": "error",
  "parameter-description": "error",
  "response-contains-header": {
    severity: "error",
    names: { "2xx": ["Workbench-Request-Id"], "4xx": ["Workbench-Request-Id"], "5xx": ["Workbench-Request-Id"] },
  },
  "response-mime-type": "off",
  "spec-strict-refs": "off", // the same x-item-schema
  "tag-description": "error",
  "tags-alphabetical": "off",
};

const file = process.argv[2];
if (!file) {
  console.error("usage: node lint.mjs FILE");
  process.exit(2);
}
const config = await createConfig({ extends: ["recommended-strict"], rules });
const problems = await lintFromString({ source: await readFile(file, "utf8"), absoluteRef: file, config });
for (const p of problems) {
  console.log(`${file}${p.location[0]?.pointer ?? ""}: ${p.message} (${p.ruleId})`);
}
console.log(`${file}: ${problems.length} ${problems.length === 1 ? "problem" : "problems"}`);
process.exitCode = problems.length > 0 ? 1 : 0;
