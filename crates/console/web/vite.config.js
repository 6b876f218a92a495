import { svelte } from '@sveltejs/vite-plugin-svelte';
import { defineConfig } from 'vite';
import { licences } from './scripts/licences.mjs';

// Fixed names and one script: the program embeds the files by name, and the same sources give the same bytes.
export default defineConfig(({ command }) => {
  // A variable of the caller must not change the build.
  if (command === 'build') process.env.NODE_ENV = 'production';
  return {
    base: './',
    plugins: [svelte(), licences()],
    server: { proxy: { '/api': 'http://127.0.0.1:8080' } },
    build: {
      outDir: process.env.CONSOLE_OUT ?? 'dist',
      emptyOutDir: true,
      target: 'es2022',
      cssTarget: ['chrome123', 'firefox120', 'safari17.5'],
      modulePreload: false,
      sourcemap: false,
      assetsInlineLimit: 0,
      cssCodeSplit: false,
      rollupOptions: {
        output: {
          codeSplitting: false,
          entryFileNames: 'app.js',
          assetFileNames: 'app[extname]',
        },
      },
    },
  };
});
