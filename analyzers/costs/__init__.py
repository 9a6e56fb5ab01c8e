"""Question: what does one execution of an HLO op cost: products, FLOPs and bytes?"""
