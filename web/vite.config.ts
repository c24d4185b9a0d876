import { type Plugin } from "vite";
import { defineConfig } from "vitest/config";

/**
 * The page waits for the script before it is painted, so that a remembered theme does not flash.
 */
function blockRender(): Plugin {
  return {
    name: "block-render",
    transformIndexHtml: {
      order: "post",
      handler: (html) =>
        html.replace(
          /<script type="module"[^>]*src="\/app\.js"[^>]*>/,
          '<script type="module" blocking="render" src="/app.js">',
        ).replace(/<link rel="stylesheet"[^>]*href="\/app\.css"[^>]*>/, '<link rel="stylesheet" href="/app.css">'),
    },
  };
}

export default defineConfig({
  base: "/",
  plugins: [blockRender()],
  build: {
    target: "es2022",
    // The first that know `light-dark()`, which the colours are written with.
    cssTarget: ["chrome123", "firefox120", "safari17.5"],
    // Names without hashes: the server says with an ETag what has changed, and a build of the same
    // source has the same bytes and the same names.
    rollupOptions: {
      output: {
        entryFileNames: "app.js",
        chunkFileNames: "[name].js",
        assetFileNames: (asset) => (asset.names.some((name) => name.endsWith(".css")) ? "app.css" : "[name][extname]"),
      },
    },
    cssCodeSplit: false,
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    reportCompressedSize: false,
  },
  // The tests of e2e need a browser and an instance: `cargo xtask browser` runs them.
  test: { include: ["test/**/*.test.ts"] },
  server: { proxy: { "/api": "http://127.0.0.1:7421" } },
});
