import helper from './index.cjs';

export const { save, result, call, WorkbenchError } = helper;
export default helper;
