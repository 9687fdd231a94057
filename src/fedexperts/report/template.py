"""What every page looks like. Its parts are put in by `page.py`, which has escaped them."""

from string import Template

# The browser itself is told to load nothing from anywhere: the page is the same without a network.
PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:">
<title>$title</title>
<style>
:root {
  color-scheme: light dark;
  --ground: #ffffff; --text: #1c1f24; --quiet: #5a6270; --edge: #d9dde3; --box: #f5f6f8; --accent: #0072b2;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ground: #15181d; --text: #e6e8eb; --quiet: #a0a8b4; --edge: #343a44; --box: #1e2229; --accent: #56b4e9;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 72rem;
  background: var(--ground); color: var(--text); font: 16px/1.5 system-ui, sans-serif;
  overflow-wrap: break-word;
}
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 1rem; }
h2 { font-size: 1.2rem; margin: 2.5rem 0 .25rem; }
p { margin: .25rem 0 .75rem; max-width: 48rem; }
.quiet { color: var(--quiet); font-size: .9rem; }
.verdict { font-size: 1.15rem; padding: .25rem 0 .25rem 1rem; border-left: 4px solid var(--accent); }
.finding { margin-bottom: .25rem; }
dl {
  display: grid; grid-template-columns: repeat(auto-fill, minmax(9rem, 1fr));
  gap: .75rem 1.5rem; margin: 1rem 0;
}
dt { color: var(--quiet); font-size: .85rem; }
dd { margin: 0; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: .5rem 0; min-width: 100%; }
th, td { padding: .4rem .6rem; text-align: right; border-bottom: 1px solid var(--edge); white-space: nowrap; }
th { vertical-align: bottom; font-size: .85rem; color: var(--quiet); }
th:first-child, td:first-child { text-align: left; }
.chosen { font-weight: 650; color: var(--text); }
details { border: 1px solid var(--edge); border-radius: 6px; margin: .5rem 0; padding: .5rem .75rem; }
summary { cursor: pointer; font-weight: 600; }
pre { background: var(--box); border-radius: 6px; padding: .75rem; overflow-x: auto; font-size: .85rem; }
.plotly-graph-div { width: 100%; }
@media (max-width: 40rem) { .modebar { display: none; } }  /* it would lie on the legend */
/* Plotly writes colours into its drawing; these follow the reader's light or dark instead. */
.js-plotly-plot .infolayer text, .js-plotly-plot .cartesianlayer text,
.js-plotly-plot .hoverlayer .legend text {
  fill: var(--text) !important;
}
.js-plotly-plot .hoverlayer .legend .bg { fill: var(--box) !important; stroke: var(--edge) !important; }
</style>
<script>$plotly</script>
</head>
<body>
$body
</body>
</html>
""")
