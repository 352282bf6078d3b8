# A small dummy folder verifies and gives tokens.
file(REMOVE_RECURSE ${FOLDER})
file(WRITE ${FOLDER}.json [[{
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 128, "intermediate_size": 256,
  "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 200,
  "rms_norm_eps": 1e-05, "max_position_embeddings": 64, "hidden_act": "silu", "tie_word_embeddings": false,
  "quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 64, "desc_act": false, "sym": true}}]])
function(must_say pattern)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE code OUTPUT_VARIABLE out ERROR_VARIABLE err)
  if(NOT code EQUAL 0 OR NOT "${out}${err}" MATCHES "${pattern}")
    message(FATAL_ERROR "${ARGN}: ${code}, and no \"${pattern}\" in:\n${out}${err}")
  endif()
endfunction()
must_say("^$" ${DUMMY} ${FOLDER}.json ${FOLDER})
must_say("gptq" ${NIBBLE} inspect ${FOLDER})
must_say("" ${NIBBLE} verify ${FOLDER})
must_say("generated: 8 tokens" ${NIBBLE} run ${FOLDER} --tokens 1,2,3 -n 8)
