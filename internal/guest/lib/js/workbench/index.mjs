import helper from './index.cjs';

export const { save, result, display, call, WorkbenchError } = helper;
export default helper;
