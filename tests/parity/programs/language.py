"""Models of text and speech, of transformers and x-transformers."""

from __future__ import annotations

from typing import Any

import torch

from tests.parity.training_run import left_behind, trained


def bert_classification() -> Any:
    """BERT classifies sentences with masks, dropout and a learning-rate schedule."""
    from transformers import BertConfig, BertForSequenceClassification, get_linear_schedule_with_warmup

    config = BertConfig(
        vocab_size=60, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, num_labels=3
    )
    model = BertForSequenceClassification(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    schedule = get_linear_schedule_with_warmup(optimizer, 1, 3)
    losses = []
    for _ in range(3):
        tokens = torch.randint(60, (3, 10))
        mask = torch.ones_like(tokens)
        mask[0, 6:] = 0
        loss = model(input_ids=tokens, attention_mask=mask, labels=torch.tensor([0, 1, 2])).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss)
        gradients = left_behind(model)
        optimizer.zero_grad()
    return losses, gradients


def deberta() -> Any:
    """DeBERTa: disentangled attention with scripted functions."""
    from transformers import DebertaV2Config, DebertaV2ForTokenClassification

    config = DebertaV2Config(
        vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, relative_attention=True,
        pos_att_type=["p2c", "c2p"], position_buckets=4, max_position_embeddings=16, num_labels=4, norm_rel_ebd="layer_norm",
        share_att_key=True,
    )  # fmt: skip
    model = DebertaV2ForTokenClassification(config).train()
    tokens, labels = torch.randint(40, (2, 8)), torch.randint(4, (2, 8))
    return trained(model, lambda: model(input_ids=tokens, labels=labels).loss)


def gpt2_generate() -> Any:
    """GPT-2 generates: greedy with a cache, beams, and samples."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=50, n_positions=32, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=49)
    model = GPT2LMHeadModel(config).eval()
    prompt = torch.randint(48, (2, 4))
    options = {"max_new_tokens": 6, "pad_token_id": 0, "attention_mask": torch.ones_like(prompt)}
    greedy = model.generate(prompt, do_sample=False, output_scores=True, return_dict_in_generate=True, **options)
    return {
        "greedy": (greedy.sequences, list(greedy.scores)),
        "beams": model.generate(prompt, num_beams=3, do_sample=False, **options),
        "sampled": model.generate(prompt, do_sample=True, top_k=5, top_p=0.9, temperature=0.7, **options),
    }


def llama_bfloat16() -> Any:
    """Llama with grouped queries under autocast to bfloat16, with gradient checkpointing."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=50,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    model = LlamaForCausalLM(config).train()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    tokens = torch.randint(50, (2, 9))

    def loss() -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            answer: torch.Tensor = model(input_ids=tokens, labels=tokens, use_cache=False).loss
        return answer

    return trained(model, loss, clip=1.0)


def llama_static_cache() -> Any:
    """Llama decodes token by token in an explicit loop, with a static and with a dynamic cache."""
    from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, StaticCache

    config = LlamaConfig(
        vocab_size=50,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    model = LlamaForCausalLM(config).eval()
    logits = []
    for cache in (DynamicCache(config=config), StaticCache(config=config, max_cache_len=12)):
        tokens = torch.arange(4).reshape(1, 4)
        with torch.inference_mode():
            for _ in range(4):
                answer = model(input_ids=tokens, past_key_values=cache, use_cache=True).logits
                tokens = answer[:, -1:].argmax(-1)
                logits.append(answer)
    return logits


def mamba() -> Any:
    """Mamba, a state-space model: its slow path is a scan in Python."""
    from transformers import MambaConfig, MambaForCausalLM

    config = MambaConfig(vocab_size=40, hidden_size=16, state_size=4, num_hidden_layers=2, conv_kernel=3)
    model = MambaForCausalLM(config).train()
    tokens = torch.randint(40, (2, 6))
    return trained(model, lambda: model(input_ids=tokens, labels=tokens).loss)


def masked_language_model() -> Any:
    """RoBERTa with tied embeddings learns masked tokens, with gradients accumulated over three batches."""
    from transformers import RobertaConfig, RobertaForMaskedLM

    config = RobertaConfig(
        vocab_size=40,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=20,
    )
    model = RobertaForMaskedLM(config).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, foreach=True)
    losses = []
    for batch in range(6):
        tokens = torch.randint(3, 40, (2, 8))
        labels = tokens.masked_fill(torch.rand(tokens.shape) > 0.3, -100)
        loss = model(input_ids=tokens.masked_fill(labels >= 0, 4), labels=labels).loss / 3
        loss.backward()
        losses.append(loss)
        if batch % 3 == 2:
            optimizer.step()
            last = left_behind(model)
            optimizer.zero_grad(set_to_none=False)
    return losses, last


def mixture_of_experts() -> Any:
    """Mixtral: a router chooses experts, so shapes depend on data."""
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        num_local_experts=4, num_experts_per_tok=2, output_router_logits=True,
    )  # fmt: skip
    model = MixtralForCausalLM(config).train()
    tokens = torch.randint(40, (2, 6))
    return trained(model, lambda: model(input_ids=tokens, labels=tokens).loss)


def qwen_flex_windows() -> Any:
    """Qwen with sliding windows and eager attention, trained with Adafactor."""
    from transformers import Adafactor, Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=40, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        use_sliding_window=True, sliding_window=4, max_window_layers=1, attn_implementation="eager",
    )  # fmt: skip
    model = Qwen2ForCausalLM(config).train()
    tokens = torch.randint(40, (2, 10))
    optimizer = Adafactor(model.parameters(), lr=1e-3, scale_parameter=False, relative_step=False)
    return trained(model, lambda: model(input_ids=tokens, labels=tokens).loss, optimizer=optimizer)


def speech_ctc() -> Any:
    """Wav2Vec2 with weight norm and a CTC loss over raw sound."""
    from transformers import Wav2Vec2Config, Wav2Vec2ForCTC

    config = Wav2Vec2Config(
        vocab_size=12, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, conv_dim=(8, 8),
        conv_stride=(4, 2), conv_kernel=(8, 3), num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2,
        num_feat_extract_layers=2, mask_time_prob=0.2, mask_time_length=2, ctc_zero_infinity=True,
    )  # fmt: skip
    model = Wav2Vec2ForCTC(config).train()
    sound, text = torch.randn(2, 400), torch.randint(1, 12, (2, 5))
    return trained(model, lambda: model(input_values=sound, labels=text).loss)


def t5_translation() -> Any:
    """T5 learns with teacher forcing, then generates with encoder and decoder caches."""
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=50, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, decoder_start_token_id=0,
        feed_forward_proj="gated-gelu",
    )  # fmt: skip
    model = T5ForConditionalGeneration(config).train()
    source, target = torch.randint(50, (2, 7)), torch.randint(50, (2, 5))
    learned = trained(model, lambda: model(input_ids=source, labels=target).loss)
    return learned, model.eval().generate(source, max_new_tokens=5, do_sample=False)


def whisper() -> Any:
    """Whisper: convolutions over a spectrum, an encoder and a decoder that generates."""
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        vocab_size=60, num_mel_bins=8, d_model=16, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, max_source_positions=20, max_target_positions=16,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1, suppress_tokens=None,
        begin_suppress_tokens=None,
    )  # fmt: skip
    model = WhisperForConditionalGeneration(config).train()
    sound, text = torch.randn(2, 8, 40), torch.randint(3, 60, (2, 6))
    learned = trained(model, lambda: model(input_features=sound, labels=text).loss)
    with torch.no_grad():
        decoded = model.eval()(input_features=sound, decoder_input_ids=text).logits
    return learned, decoded


def x_transformers_decoder() -> Any:
    """A decoder of x-transformers: rotary positions, gated feed-forward, root-mean-square norms."""
    from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

    layers = Decoder(dim=16, depth=2, heads=2, attn_dim_head=8, rotary_pos_emb=True, ff_glu=True, use_rmsnorm=True)
    model = AutoregressiveWrapper(TransformerWrapper(num_tokens=40, max_seq_len=16, attn_layers=layers))
    tokens = torch.randint(40, (2, 10))
    return trained(model, lambda: model(tokens)), model.generate(tokens[:, :3], 4)
