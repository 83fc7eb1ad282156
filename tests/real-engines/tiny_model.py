"""Makes the model that the real engines serve: two layers, 1.5 MB, random weights of a fixed seed.

    tiny_model.py FOLDER

Its answers mean nothing, but greedy ones follow from the prompt and nothing else, so that two engines can be compared.
The weights are drawn wide, else every prompt would get the same answer. Heads of 32 are among the sizes that vLLM's attention
on the CPU takes. A token's KV has 2 layers x (key and value) x 2 heads x 32 x 4 bytes = 1,024 bytes.
"""

import pathlib
import sys

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

TEXT = "prefill computes the prompt once and decode fetches its keys and values, then says one token after the other"
SPECIAL = ["<unk>", "<s>", "</s>", "<pad>"]
CHAT_TEMPLATE = (
    "{% for message in messages %}<s>{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
LONGEST_PROMPT_TOKENS = 8192
SEED = 7


def tokenizer():
    made = Tokenizer(models.BPE(unk_token=None))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    # All 256 bytes are tokens of their own, so that every text can be said.
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=320, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator([TEXT], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=made, unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="<pad>",
        chat_template=CHAT_TEMPLATE, model_max_length=LONGEST_PROMPT_TOKENS,
    )


def main():
    folder = pathlib.Path(sys.argv[1])
    tokens = tokenizer()
    torch.manual_seed(SEED)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=len(tokens), hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=LONGEST_PROMPT_TOKENS, initializer_range=0.2,
        bos_token_id=tokens.bos_token_id, eos_token_id=tokens.eos_token_id, pad_token_id=tokens.pad_token_id,
        torch_dtype="float32",
    ))
    model.generation_config.do_sample = False
    model.save_pretrained(folder)
    tokens.save_pretrained(folder)
    print(f"{len(tokens)} tokens, {sum(parameter.numel() for parameter in model.parameters())} weights in {folder}")


if __name__ == "__main__":
    main()
