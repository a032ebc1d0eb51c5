"""The theory of speculative decoding on models: acceptance, costs, predicted and measured speedup."""
