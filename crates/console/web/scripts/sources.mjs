// dist/sources.sha256: SHA-256 of every source of the pages, of the lock file and of every file in dist, in the format of
// sha256sum. `cargo xtask tidy` compares it with the files, so that a forgotten build is found without Node.
import { createHash } from 'node:crypto';
import { readFileSync, readdirSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = join(dirname(fileURLToPath(import.meta.url)), '..');
const LIST = 'dist/sources.sha256';
/** Files and folders that decide the build. xtask/src/pages.rs has the same list. */
const SOURCES = ['.npmrc', 'dist', 'index.html', 'package-lock.json', 'package.json', 'public', 'scripts', 'src', 'svelte.config.js', 'tsconfig.json', 'vite.config.js'];

function files(name) {
  try {
    return readdirSync(join(root, name)).flatMap((child) => files(`${name}/${child}`));
  } catch (error) {
    if (error.code === 'ENOTDIR') return [name];
    if (error.code === 'ENOENT') return [];
    throw error;
  }
}

function current() {
  const names = SOURCES.flatMap(files).filter((name) => name !== LIST);
  names.sort((a, b) => (a < b ? -1 : 1));
  const hash = (name) => createHash('sha256').update(readFileSync(join(root, name))).digest('hex');
  return names.map((name) => `${hash(name)}  ${name}\n`).join('');
}

const command = process.argv[2];
if (command === 'write') {
  writeFileSync(join(root, LIST), current());
} else if (command === 'verify') {
  let recorded = '';
  try {
    recorded = readFileSync(join(root, LIST), 'utf8');
  } catch (error) {
    if (error.code !== 'ENOENT') throw error;
  }
  if (recorded !== current()) {
    console.error('dist is not up to date; run: npm run build');
    process.exit(1);
  }
} else {
  console.error('usage: node scripts/sources.mjs write|verify');
  process.exit(2);
}
