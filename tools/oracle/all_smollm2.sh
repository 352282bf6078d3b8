#!/bin/sh
# Makes every oracle of the real model. usage: all_smollm2.sh MODEL.gguf FOLDER
# BASE, GPTQ and AWQ name the Python of each environment (tools/golden/requirements*.txt).
set -eu
cd "$(dirname "$0")"
gguf=$1
out=$2
text=../../tests/data/english.txt
mkdir -p "$out/reference"

logits() { # name, folder of float weights, then options
  local name=$1 plain=$2
  shift 2
  "$BASE" reference_logits.py "$plain" $text --out "$out/reference/$name.npy" "$@" > "$out/reference/$name.tokens.txt"
  "$BASE" perplexity.py "$plain" $text "$@" > "$out/reference/$name.perplexity.txt"
  echo "$name: $(cat "$out/reference/$name.perplexity.txt")"
}

source=$out/smollm2-f32
[ -f "$source/model.safetensors" ] || "$BASE" gguf_to_hf.py "$gguf" "$source"
logits smollm2-f32 "$source"

for scheme in tensor channel block; do
  folder=$out/smollm2-fp8-$scheme
  "$BASE" quantize_fp8.py "$source" "$folder" $scheme
  logits smollm2-fp8-$scheme "$folder-dequantized"
  logits smollm2-fp8-$scheme.activations "$folder-dequantized" --activations "$folder"
done
"$BASE" quantize_fp8.py "$source" "$out/smollm2-fp8-static" tensor $text
logits smollm2-fp8-static "$out/smollm2-fp8-static-dequantized"
logits smollm2-fp8-static.activations "$out/smollm2-fp8-static-dequantized" --activations "$out/smollm2-fp8-static"

"$AWQ" quantize_awq.py "$source" "$out/smollm2-awq-g64"
logits smollm2-awq-g64 "$out/smollm2-awq-g64-dequantized"
"$GPTQ" quantize_gptq.py "$source" "$out/smollm2-gptq-g64" $text
logits smollm2-gptq-g64 "$out/smollm2-gptq-g64-dequantized"
