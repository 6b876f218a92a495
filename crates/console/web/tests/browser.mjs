// Debian's Chromium with a page that must log no error.
import assert from 'node:assert/strict';
import { existsSync, readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { delimiter, join } from 'node:path';
import { chromium } from 'playwright-core';

const require = createRequire(import.meta.url);
const AXE = readFileSync(require.resolve('axe-core/axe.min.js'), 'utf8');

function program() {
  const folders = (process.env.PATH ?? '').split(delimiter);
  const named = folders.flatMap((folder) => ['chromium', 'chromium-browser', 'google-chrome'].map((name) => join(folder, name)));
  const found = [process.env.CONSOLE_CHROMIUM, '/usr/bin/chromium', ...named].find((path) => path && existsSync(path));
  assert.ok(found, 'chromium is not installed (Debian: chromium); CONSOLE_CHROMIUM names another program');
  return found;
}

let browser;

export async function launch() {
  browser ??= await chromium.launch({ executablePath: program(), args: ['--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage'], timeout: 120_000 });
  return browser;
}

export async function close() {
  await browser?.close();
  browser = undefined;
}

/** A page of the server at `url`. `errors` has everything that a page without mistakes does not do. */
export async function open(url, { theme = 'light', width = 1280, height = 800, tolerate } = {}) {
  const context = await (await launch()).newContext({ viewport: { width, height }, colorScheme: theme, reducedMotion: 'reduce', acceptDownloads: true });
  const page = await context.newPage();
  page.setDefaultTimeout(60_000);
  const errors = [];
  const note = (text) => {
    if (!tolerate?.test(text)) errors.push(text);
  };
  page.on('console', (message) => ['error', 'warning'].includes(message.type()) && note(`console: ${message.text()} ${message.location().url}`));
  page.on('pageerror', (error) => note(`exception: ${error.message}`));
  page.on('request', (request) => !request.url().startsWith(url) && !request.url().startsWith('blob:') && note(`request to ${request.url()}`));
  return {
    page,
    errors,
    async go(path) {
      await page.goto(`${url}/${path}`);
      await page.waitForSelector('h1');
      await page.waitForFunction(() => !document.querySelector('main')?.textContent?.includes('Loading …'));
    },
    /** Violations of WCAG 2.2 A and AA, as text; `colours`: of the rules on colours only, which depend on the theme. */
    async axe(colours = false) {
      // Run by the debugger: the policy of the page forbids scripts of others.
      await page.evaluate(AXE);
      // What depends on sizes is set in the frame after a layout.
      await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
      const all = ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice'];
      const runOnly = colours ? { type: 'rule', values: ['color-contrast', 'link-in-text-block'] } : all;
      const result = await page.evaluate((runOnly) => window.axe.run(document, { runOnly, resultTypes: ['violations'] }), runOnly);
      return result.violations.flatMap((violation) => violation.nodes.map((node) => `${violation.id}: ${node.html.slice(0, 160)} (${node.any.concat(node.all, node.none).map((one) => one.message).join('; ').slice(0, 200)})`));
    },
    close: () => context.close(),
  };
}
