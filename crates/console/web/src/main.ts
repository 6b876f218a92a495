import 'uplot/dist/uPlot.min.css';
import './app.css';
import { mount } from 'svelte';
import App from './App.svelte';
import { noteInput } from './lib/api';

for (const name of ['pointerdown', 'pointermove', 'keydown', 'wheel', 'touchstart']) addEventListener(name, noteInput, { capture: true, passive: true });

const target = document.getElementById('app');
if (target) mount(App, { target });
