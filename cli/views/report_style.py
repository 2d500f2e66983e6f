"""The style of a run's report: the colours of the light and the dark theme, one column where
narrow.

Rule: pictures are drawn in these variables (`cli.pictures.report.INKS`), and a test checks that
each is here for both themes.
"""

STYLE = """\
:root {
  color-scheme: light dark;
  --page: #f4f5f6; --card: #ffffff; --line: #dfe3e6;
  --ink: #1b2026; --muted: #5d676f; --rule: #e3e6e8;
  --good: #2f7d4f; --bad: #c0392b; --warn: #c27c02;
  --zone-0: #2f7d50; --zone-1: #2b6cb0; --zone-2: #c27c03;
  --zone-3: #8250a8; --zone-4: #0f8a8a; --zone-5: #8a8f94;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #14181c; --card: #1d2328; --line: #323a41;
    --ink: #e6eaed; --muted: #9aa5ad; --rule: #343c43;
    --good: #5fc48a; --bad: #ff7a6b; --warn: #e8ab45;
    --zone-0: #5fc48b; --zone-1: #6fb0f2; --zone-2: #e8ab46;
    --zone-3: #c19ae6; --zone-4: #4cc6c6; --zone-5: #a9b0b6;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.45 system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif;
}
main { max-width: 1180px; margin: 0 auto; padding: 20px 16px 40px; }
h1 { font-size: 1.5rem; margin: 0 0 6px; overflow-wrap: anywhere; }
h2 { font-size: 1.05rem; margin: 0; }
p { margin: 4px 0; overflow-wrap: anywhere; }
.muted, small { color: var(--muted); font-size: 0.85rem; }
.tag {
  border: 1px solid currentColor; border-radius: 6px; padding: 1px 8px; font-weight: 600;
}
.good { color: var(--good); } .bad { color: var(--bad); } .warn { color: var(--warn); }
.figures {
  display: grid; gap: 10px; margin: 18px 0;
  grid-template-columns: repeat(auto-fit, minmax(200px, 1fr));
}
.figures div, .card {
  background: var(--card); border: 1px solid var(--line); border-radius: 10px;
}
.figures div { padding: 10px 12px; }
dt { color: var(--muted); font-size: 0.85rem; }
dd { margin: 0; font-size: 1.45rem; font-weight: 600; font-variant-numeric: tabular-nums; }
dd small { display: block; font-weight: 400; line-height: 1.3; }
.cards {
  display: grid; gap: 14px; align-items: start; margin-top: 14px;
  grid-template-columns: repeat(auto-fit, minmax(min(440px, 100%), 1fr));
}
.card { padding: 14px; margin: 0; min-width: 0; }
main > .card { margin-top: 14px; }
.missing { border-color: var(--warn); }
figure svg { display: block; width: 100%; max-width: 640px; height: auto; margin: 8px auto 0; }
svg * { stroke-linejoin: round; stroke-linecap: butt; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th { text-align: right; color: var(--muted); font-weight: 400; font-size: 0.85rem; }
td { text-align: right; border-top: 1px solid var(--line); }
th, td { padding: 5px 8px; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; padding-left: 0; white-space: normal; }
th:last-child, td:last-child { padding-right: 0; }
.sum td { font-weight: 600; border-top: 2px solid var(--muted); }
.beside td { color: var(--muted); }
ol, ul { margin: 8px 0 0; padding-left: 22px; }
li { margin: 4px 0; overflow-wrap: anywhere; font-size: 0.92rem; }
@media (max-width: 480px) {
  .figures { grid-template-columns: 1fr 1fr; }
  dd { font-size: 1.2rem; }
  main { padding: 14px 10px 30px; }
  .card { padding: 10px; }
  th, td { padding: 5px 4px; font-size: 0.85rem; }
}
@media print { body { background: none; } .card { break-inside: avoid; } }
"""
