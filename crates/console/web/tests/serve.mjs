// The mock server on a fixed port, to look at the pages: npm run mock [ROLE]
import { start } from './mock.mjs';

const [role = 'admin', hostile = ''] = process.argv.slice(2);
const mock = await start({ role, port: 8899, hostile: hostile === 'hostile' });
console.log(mock.url);
