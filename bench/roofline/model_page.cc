#include "bench/roofline/model_page.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "nlohmann/json.hpp"

namespace ridge::bench {
namespace {

using nlohmann::ordered_json;

// A part of the model. Bytes and operations of a step are `weights` once, `kv` for each position of each
// sequence's context, `per_token` for each token, `per_pair` for each token and position.
ordered_json Part(const std::string& name, const std::string& shape, double weights, double per_token_flops,
                  const std::string& formula) {
  return {{"name", name},  {"shape", shape},  {"weights", weights}, {"flops_token", per_token_flops},
          {"kv_bytes", 0}, {"flops_pair", 0}, {"formula", formula}};
}

ordered_json Matrix(const std::string& name, int64_t rows, int64_t cols, const std::string& formula) {
  const auto elements = static_cast<double>(rows * cols);
  return Part(name, absl::StrCat("[", rows, ", ", cols, "]"), 2 * elements, 2 * elements, formula);
}

ordered_json LayerParts(const worker::ModelConfig& model) {
  const int64_t hidden = model.hidden_size, q = model.q_size(), kv = model.kv_size(), mlp = model.mlp_size;
  const double norm_bytes = 2.0 * static_cast<double>(hidden);
  ordered_json attention = Part(
      "attention",
      absl::StrCat(model.num_heads, " query heads on ", model.num_kv_heads, " K/V heads of ", model.head_dim),
      0, 0, "softmax(q K^T / sqrt(d)) V over the paged K/V");
  attention["kv_bytes"] = 4 * kv;
  attention["flops_pair"] = 4 * q;
  return {Part("norm", absl::StrCat("[", hidden, "]"), norm_bytes, 4.0 * static_cast<double>(hidden),
               "x / rms(x) * w"),
          Matrix(model.qkv_bias ? "q, k, v + bias" : "q, k, v", q + 2 * kv, hidden,
                 "one matrix; then the rotation, and K and V into their pages"),
          attention,
          Matrix("output projection + residual", hidden, q, "x += W o"),
          Part("norm", absl::StrCat("[", hidden, "]"), norm_bytes, 4.0 * static_cast<double>(hidden),
               "x / rms(x) * w"),
          Matrix("gate and up", 2 * mlp, hidden, "one matrix, then SiLU(gate) x up"),
          Matrix("down + residual", hidden, mlp, "x += W (SiLU(gate) x up)")};
}

ordered_json Describe(const worker::ModelConfig& model, const DataSheet& card) {
  const int64_t hidden = model.hidden_size;
  ordered_json embedding =
      Part("embedding", absl::StrCat("[", model.vocab_size, ", ", hidden, "]"), 0, 0, "a row a token");
  embedding["row_bytes"] = 2 * hidden;
  ordered_json head = Matrix(model.tied_embedding ? "output matrix (the embedding)" : "output matrix",
                             model.vocab_size, hidden, "logits, only for rows that want a token");
  return {{"name", model.name},
          {"layers", model.num_layers},
          {"card", card.name},
          {"bandwidth", card.bandwidth_gb_s * 1e9},
          {"flops", card.fp16_tflops * 1e12},
          {"first", {embedding}},
          {"layer", LayerParts(model)},
          {"last",
           {Part("norm", absl::StrCat("[", hidden, "]"), 2.0 * static_cast<double>(hidden),
                 4.0 * static_cast<double>(hidden), "x / rms(x) * w"),
            head}}};
}

constexpr char kPage[] = R"HTML(<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>@NAME@</title>
<style>
 body { font: 15px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 60em; color: #1d2733; background: #fbfbf9; padding: 0 1em }
 h1 { font-size: 1.35em; margin-bottom: .2em } .sub { color: #5b6672 }
 .controls { display: flex; gap: 2em; flex-wrap: wrap; margin: 1em 0 } label { display: block } input { width: 16em }
 .group { border: 1px solid #c9ced4; border-radius: 8px; padding: .6em; margin: .5em 0; background: #fff }
 .group > b { color: #5b6672; font-weight: 600 }
 .part { display: grid; grid-template-columns: 15em 13em 1fr 6em 6em 6em; gap: .6em; align-items: center; padding: .2em .3em; border-radius: 5px; cursor: pointer }
 .part:hover, .part:focus { background: #eef3f8; outline: none } .part.head { color: #5b6672; cursor: default; font-size: .85em }
 .part span.n { text-align: right; font-variant-numeric: tabular-nums }
 .bar { height: .9em; background: #e8ebee; border-radius: 3px; overflow: hidden } .bar i { display: block; height: 100%; background: #3b7dd8 }
 .bar i.compute { background: #d8743b }
 #detail { min-height: 4.5em; border-left: 3px solid #3b7dd8; padding: .3em .8em; background: #fff; margin-top: 1em }
 .key i { display: inline-block; width: 1em; height: .8em; border-radius: 2px; background: #3b7dd8; margin-right: .3em } .key i.compute { background: #d8743b }
</style></head><body>
<h1>@NAME@</h1><p class="sub">One pass on @CARD@: what each part reads and computes, in the time that the slower of the two takes.</p>
<div class="controls">
 <label>sequences <output id="bo"></output><br><input id="b" type="range" min="0" max="10" value="0" step="1"></label>
 <label>context of each, tokens <output id="co"></output><br><input id="c" type="range" min="4" max="15" value="8" step="1"></label>
 <label><input id="p" type="checkbox" style="width:auto"> prefill: put the whole context through</label>
</div>
<p class="key"><i></i>bound by memory &nbsp; <i class="compute"></i>bound by arithmetic</p>
<div id="parts"></div><div id="detail" aria-live="polite">Choose a part.</div>
<script>
const M = @DATA@;
const $ = id => document.getElementById(id);
const unit = (v, s, n) => { let i = 0; while (v >= 1000 && i < n.length - 1) { v /= 1000; i++ } return v.toPrecision(v < 10 ? 2 : 3).replace(/\.?0+$/, m => m.includes('.') ? '' : m) + ' ' + n[i] + s };
const bytes = v => unit(v, 'B', ['', 'k', 'M', 'G', 'T']), flops = v => unit(v, 'FLOP', ['', 'k', 'M', 'G', 'T', 'P']);
const time = s => s >= 1e-3 ? (s * 1e3).toFixed(2) + ' ms' : (s * 1e6).toFixed(1) + ' us';
function cost(part, batch, context, prefill) {
  const tokens = prefill ? batch * context : batch, outputs = part.outputs ? batch : tokens;
  const pairs = prefill ? batch * context * (context + 1) / 2 : batch * context;
  const read = part.weights + (part.row_bytes || 0) * tokens + part.kv_bytes * batch * context;
  const ops = part.flops_token * outputs + part.flops_pair * pairs;
  return { read, ops, memory: read / M.bandwidth, compute: ops / M.flops, time: Math.max(read / M.bandwidth, ops / M.flops) };
}
function draw() {
  const batch = 2 ** +$('b').value, context = 2 ** +$('c').value, prefill = $('p').checked;
  $('bo').value = batch; $('co').value = context;
  M.last[1].outputs = true;
  const groups = [['once', M.first, 1], ['each of ' + M.layers + ' layers', M.layer, M.layers], ['at the end', M.last, 1]];
  const total = groups.reduce((t, [, parts, n]) => t + n * parts.reduce((s, p) => s + cost(p, batch, context, prefill).time, 0), 0);
  const longest = Math.max(...groups.flatMap(([, parts, n]) => parts.map(p => n * cost(p, batch, context, prefill).time)));
  const root = $('parts'); root.replaceChildren();
  for (const [title, parts, n] of groups) {
    const box = document.createElement('div'); box.className = 'group'; const b = document.createElement('b'); b.textContent = title; box.append(b);
    for (const p of parts) {
      const c = cost(p, batch, context, prefill), row = document.createElement('div'); row.className = 'part'; row.tabIndex = 0;
      const cells = [p.name, p.shape, null, bytes(n * c.read), flops(n * c.ops), time(n * c.time)];
      cells.forEach((text, i) => { const e = document.createElement(i === 2 ? 'div' : 'span');
        if (i === 2) { e.className = 'bar'; const f = document.createElement('i'); f.style.width = 100 * n * c.time / longest + '%'; if (c.compute > c.memory) f.className = 'compute'; e.append(f) }
        else { e.textContent = text; if (i > 2) e.className = 'n' } row.append(e) });
      const show = () => { $('detail').textContent = p.name + ' ' + p.shape + ': ' + p.formula + '. ' + (n > 1 ? 'In each layer ' : '') + bytes(c.read) + ' read (' + time(c.memory) + '), ' + flops(c.ops) + ' (' + time(c.compute) + '), ' + (100 * n * c.time / total).toFixed(1) + ' % of the pass.' };
      row.onclick = show; row.onfocus = show; box.append(row);
    }
    root.append(box);
  }
  const sum = document.createElement('p'); sum.textContent = 'The whole pass: at least ' + time(total) + (prefill ? '' : ', ' + Math.round(batch / total).toLocaleString('en') + ' tokens/s'); root.append(sum);
}
for (const id of ['b', 'c', 'p']) $(id).oninput = draw;
draw();
</script></body></html>
)HTML";

}  // namespace

std::string ModelPage(const worker::ModelConfig& model, const DataSheet& card) {
  // "</" must not end the script early.
  const std::string data = absl::StrReplaceAll(Describe(model, card).dump(), {{"</", "<\\/"}});
  const std::string name = absl::StrReplaceAll(model.name, {{"&", "&amp;"}, {"<", "&lt;"}});
  return absl::StrReplaceAll(kPage, {{"@NAME@", name}, {"@CARD@", card.name}, {"@DATA@", data}});
}

}  // namespace ridge::bench
