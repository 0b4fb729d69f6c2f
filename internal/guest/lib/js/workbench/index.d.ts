// The helper library of code in a sandbox. What is called without await still
// completes before the program, or the cell, ends.

export type Status = 'executing' | 'pending_approval' | 'succeeded' | 'failed' | 'denied' | 'expired' | 'unknown';

export interface CallError {
  code: string;
  detail: string;
  hint?: string;
  field?: string;
}

/** What became of a call of a tool. */
export interface Receipt<Result = any> {
  id: string;
  status: Status;
  tool: string;
  version: string;
  connection?: string;
  /** What the tool gave; absent where it is too large to be here, or where there is none. */
  result?: Result;
  /** The beginning of a result that is too large to be here. */
  preview?: string;
  /** The retained file that holds such a result. */
  artifactId?: string;
  resultBytes: number;
  error?: CallError;
  approval?: { state: 'pending' | 'approved' | 'denied' | 'expired' | 'revoked'; rules: string[]; why?: string; expiresAt: string; reason?: string };
  rules: string[];
  number: number;
  createdAt: string;
  startedAt?: string;
  finishedAt?: string;
  durationMs: number;
  [field: string]: any;
  /** The receipt of a call that succeeded; for any other it throws a WorkbenchError, with the receipt in it. */
  raiseForStatus(): this;
}

/** A file that was kept. */
export interface SavedFile {
  id: string;
  name: string;
  status: 'saved';
  [field: string]: any;
}

export interface FoundTool {
  name: string;
  version: string;
  description: string;
  connections: string[];
}

export interface ToolSchema extends FoundTool {
  inputSchema: object;
  outputSchema?: object;
  annotations: { title?: string; readOnly: boolean; destructive: boolean; idempotent: boolean; openWorld: boolean };
}

export interface FoundPage {
  title: string;
  url: string;
  snippet: string;
}

/** What was refused: code for programs, hint for people. */
export class WorkbenchError extends Error {
  constructor(error: CallError & { receipt?: Receipt });
  readonly code: string;
  readonly detail: string;
  readonly hint?: string;
  readonly field?: string;
  readonly receipt?: Receipt;
}

export interface CallOptions {
  /** The exact one that the session may call; it can be left out where there is only one. */
  version?: string | number;
  /** One of the session's connections. */
  connectionAlias?: string;
  /** The same. */
  connection?: string;
}

/** Calls a tool, app.tool, and gives the receipt, whatever became of the call. */
export function call<Result = any>(tool: string, args?: object, options?: CallOptions): Promise<Receipt<Result>>;

/** The receipt of an earlier call as it is now, or once its status is final: wait is in seconds. */
export function receipt<Result = any>(of: string | Receipt<Result>, options?: { wait?: number }): Promise<Receipt<Result>>;

/** The tools that this session may call. */
export const tools: {
  search(query: string, options?: { limit?: number }): Promise<FoundTool[]>;
  schema(name: string, options?: { version?: string | number }): Promise<ToolSchema>;
};

/** Asks the model of this server. */
export const ai: {
  complete(prompt: string, options?: { system?: string; maxTokens?: number }): Promise<string>;
  summarise(text: string, options?: { words?: number }): Promise<string>;
  summarize(text: string, options?: { words?: number }): Promise<string>;
  classify<Label extends string>(text: string, labels: Iterable<Label>): Promise<Label>;
  extract<Data = any>(text: string, schema: object): Promise<Data>;
};

/** Looks for pages in the web. */
export const web: {
  search(query: string, options?: { limit?: number }): Promise<FoundPage[]>;
};

/** Keeps a file beyond the session. With content it is written first, at its name in the workspace. */
export function save(name: string | URL, content?: string | ArrayBuffer | ArrayBufferView | Blob | Iterable<string | Uint8Array> | AsyncIterable<string | Uint8Array>): Promise<SavedFile>;

/** Sets the run's structured result: any JSON value; the last one counts. */
export function result(value: unknown): Promise<void>;

/** Shows a value, or an object from MIME types to text or bytes as it is. */
export function display(value: unknown, options?: { id?: string; update?: boolean; metadata?: object }): Promise<void>;

export interface FetchedResponse {
  status: number;
  ok: boolean;
  /** Names in lower case. */
  headers: Record<string, string>;
  body: Buffer;
  text(): string;
  json(): any;
}

/** Makes a request to a host that the rules let this run reach. Redirects are not followed. */
export function fetch(url: string | URL, options?: { method?: string; headers?: Record<string, string>; body?: string | ArrayBufferView; json?: unknown; connection?: string }): Promise<FetchedResponse>;

export interface PackageSet {
  manager: 'pip' | 'npm';
  requested: string[];
  name: string;
  path: string;
  lock?: { name: string; version: string; hash: string }[];
  bytes: number;
}

/** Packages from the registries that this server asks. */
export const packages: {
  /** Installs packages, for this program, those that it starts, and later runs of the session. */
  install(packages: string | string[], options?: { manager?: 'npm' | 'pip' }): Promise<PackageSet>;
};

export interface Table {
  name: string;
  rows: string[][];
}

/** The text of a document, its Markdown, or its tables; PDF, DOCX, XLSX, PPTX, HTML, CSV, text, and images where the sandbox has OCR. */
export function extract(file: string, options?: { format?: 'text' | 'markdown' }): Promise<string>;
export function extract(file: string, options: { format: 'tables' }): Promise<Table[]>;

declare const helper: {
  call: typeof call;
  receipt: typeof receipt;
  tools: typeof tools;
  ai: typeof ai;
  web: typeof web;
  packages: typeof packages;
  fetch: typeof fetch;
  extract: typeof extract;
  save: typeof save;
  result: typeof result;
  display: typeof display;
  WorkbenchError: typeof WorkbenchError;
};
export default helper;

declare global {
  const workbench: typeof helper;
  const arc0: typeof helper;
}
