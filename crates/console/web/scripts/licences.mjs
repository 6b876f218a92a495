// Writes licenses.txt: the licence of each package that has code in the bundle.
import { readFileSync, readdirSync } from 'node:fs';
import { join, sep } from 'node:path';

const PACKAGE = /^(.*[\\/]node_modules[\\/](?:@[^\\/]+[\\/])?[^\\/]+)[\\/]/;

export function licences() {
  return {
    name: 'licences',
    generateBundle(_options, bundle) {
      const folders = new Set();
      for (const chunk of Object.values(bundle)) {
        if (chunk.type !== 'chunk') continue;
        for (const id of Object.keys(chunk.modules)) {
          const folder = PACKAGE.exec(id.replace(/^\0/, ''))?.[1];
          if (folder) folders.add(folder);
        }
      }
      const name = (folder) => folder.split(`node_modules${sep}`).at(-1);
      const sorted = [...folders].sort((a, b) => (name(a) < name(b) ? -1 : 1));
      const parts = sorted.map((folder) => {
        const { name, version, license } = JSON.parse(readFileSync(join(folder, 'package.json'), 'utf8'));
        const file = readdirSync(folder).find((file) => /^licen[cs]e/i.test(file));
        if (!file) throw new Error(`${name} has no licence file`);
        const text = readFileSync(join(folder, file), 'utf8').replaceAll('\r\n', '\n').trim();
        return `${name} ${version} (${license})\n\n${text}\n`;
      });
      const head = 'The pages of the console contain code of these packages.\n\n';
      this.emitFile({ type: 'asset', fileName: 'licenses.txt', source: head + parts.join('\n---\n\n') });
    },
  };
}
