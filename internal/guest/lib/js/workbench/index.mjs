import helper from './index.cjs';

export const { call, receipt, tools, ai, web, packages, fetch, extract, save, result, display, WorkbenchError } = helper;
export default helper;
