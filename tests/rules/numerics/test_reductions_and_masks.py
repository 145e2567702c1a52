"""Births in means, quotients, masks, attention and CTC: traced snippets, explained by the rules."""

from __future__ import annotations

from pathlib import Path

import pytest

from rules.traced import explained

EMPTY_REDUCTION = {
    "masked mean over nothing": """
        x = torch.randn(4, requires_grad=True); mask = torch.zeros(4, dtype=torch.bool)
        loss = (x * mask).sum() / mask.sum()  #!
        loss.backward()
    """,
    "mean of a selection of nothing": """
        x = torch.randn(4, requires_grad=True)
        loss = x[x > 100].mean()  #!
        loss.backward()
    """,
    "cross entropy with every label ignored": """
        net = nn.Linear(4, 3); y = torch.full((5,), -100)
        loss = F.cross_entropy(net(torch.randn(5, 4)), y)  #!
        loss.backward()
    """,
    "degree of an isolated node": """
        adj = torch.tensor([[0., 1, 0], [1, 0, 0], [0, 0, 0]]); w = nn.Linear(3, 2)
        d = adj.sum(1).pow(-0.5)  #!
        loss = w(d[:, None] * adj * d[None, :]).sum(); loss.backward()
    """,
    "per class mean of an absent class": """
        f = torch.randn(6, 2, requires_grad=True); y = torch.tensor([0, 0, 1, 1, 1, 0])
        onehot = F.one_hot(y, 3).float()
        proto = onehot.t() @ f / onehot.sum(0)[:, None]  #!
        loss = proto.pow(2).sum(); loss.backward()
    """,
    "dice of two empty masks": """
        p = torch.zeros(2, 8, requires_grad=True); t = torch.zeros(2, 8)
        loss = 1 - (2 * (F.relu(p) * t).sum(1) / (F.relu(p).sum(1) + t.sum(1))).mean()  #!
        loss.backward()
    """,
    "weights of a loss that are all zero": """
        e = torch.randn(8, requires_grad=True).pow(2); w = torch.zeros(8)
        loss = (e * w).sum() / w.sum()  #!
        loss.backward()
    """,
    "attention over the edges of a node without one": """
        e = torch.randn(3, requires_grad=True).exp(); rows = torch.tensor([0, 0, 1])
        total = torch.zeros(3).index_add(0, rows, e)
        loss = (torch.zeros(3).index_add(0, rows, e * 2) / total).sum()  #!
        loss.backward()
    """,
    "attention by hand over a sparse row without an entry": """
        e = torch.randn(3, requires_grad=True).exp()
        graph = torch.sparse_coo_tensor(torch.tensor([[0, 0, 1], [0, 1, 1]]), e, (3, 3), check_invariants=False)
        loss = (torch.sparse.mm(graph, torch.ones(3, 2)) / torch.sparse.mm(graph, torch.ones(3, 1))).sum()  #!
        loss.backward()
    """,
    "count of positives by count_nonzero": """
        s = torch.randn(10, requires_grad=True); y = torch.zeros(10, dtype=torch.long)
        loss = (F.softplus(s) * y).sum() / torch.count_nonzero(y)  #!
        loss.backward()
    """,
}

TOO_FEW_SAMPLES = {
    "std of one reward": """
        r = torch.tensor([1.0]); w = torch.ones(1, requires_grad=True)
        loss = (w * (r - r.mean()) / (r.std() + 1e-8)).sum()  #!
        loss.backward()
    """,
    "var along a dimension of one": """
        x = torch.randn(4, 1, 8, requires_grad=True)
        loss = x.var(dim=1).mean()  #!
        loss.backward()
    """,
    "batch norm refuses one value": """
        bn = nn.BatchNorm1d(4)
        loss = bn(torch.randn(1, 4)).sum()  #!
    """,
    "std_mean of a single step": """
        x = torch.randn(1, 3, requires_grad=True)
        s, m = torch.std_mean(x, dim=0)  #!
        loss = ((x - m) / (s + 1e-5)).sum(); loss.backward()
    """,
}

ATTN_FULLY_MASKED = {
    "softmax of a row of -inf": """
        s = torch.randn(3, 4, requires_grad=True); m = torch.tensor([[1, 1, 1, 1], [0, 0, 0, 0], [1, 0, 0, 0]]).bool()
        loss = torch.softmax(s.masked_fill(~m, float("-inf")), -1).pow(2).sum()  #!
        loss.backward()
    """,
    "pointer network log_softmax": """
        s = torch.randn(2, 5, requires_grad=True); used = torch.ones(2, 5).bool(); used[0, 2] = False
        lp = torch.log_softmax(s.masked_fill(used, -math.inf), -1)  #!
        loss = -lp[0, 2] - lp[1, 0]; loss.backward()
    """,
    "logsumexp over nothing, in the gradient": """
        s = torch.full((2, 3), -math.inf); w = torch.zeros(2, 3, requires_grad=True)
        z = torch.logsumexp(s + w, -1)  #!
        loss = torch.exp(z).sum(); loss.backward()
    """,
    "softmax by hand with the maximum subtracted": """
        s = torch.randn(2, 3, requires_grad=True); x = s.masked_fill(torch.ones(2, 3).bool(), -math.inf)
        e = torch.exp(x - x.amax(-1, keepdim=True))  #!
        loss = (e / e.sum(-1, keepdim=True)).sum(); loss.backward()
    """,
    "attention of a decoder with an empty memory": """
        mha = nn.MultiheadAttention(8, 2, batch_first=True); q = torch.randn(2, 3, 8); mem = torch.randn(2, 4, 8)
        pad = torch.zeros(2, 4).bool(); pad[1] = True
        y, w = mha(q, mem, mem, key_padding_mask=pad)  #!
        loss = y[0].pow(2).mean(); loss.backward()
    """,
    "masked output afterwards": """
        q = torch.randn(2, 3, 4, requires_grad=True); keep = torch.tensor([True, False])
        s = (q @ q.transpose(1, 2)).masked_fill(~keep[:, None, None], -math.inf)
        a = torch.softmax(s, -1)  #!
        loss = (a @ q).masked_fill(~keep[:, None, None], 0.0).sum(); loss.backward()
    """,
}

MASK_VALUE = {
    "two masks of finfo.min added in float32": """
        mn = torch.finfo(torch.float32).min; q = torch.randn(3, 4, requires_grad=True)
        pad = torch.zeros(3); pad[0] = mn
        causal = torch.full((3, 3), mn).triu(1)
        mask = causal + pad[None, :] + torch.full((3, 1), mn) * torch.tensor([[1.0], [0.0], [0.0]])  #!
        loss = (torch.softmax(q @ q.t() + mask, -1) @ q).sum(); loss.backward()
    """,
    "mask times minus infinity": """
        s = torch.randn(2, 4, requires_grad=True); keep = torch.tensor([[1.0, 1, 0, 1], [1, 0, 0, 1]])
        add = (1 - keep) * float("-inf")  #!
        loss = torch.softmax(s + add, -1).pow(2).sum(); loss.backward()
    """,
    "mask with the wrong sign": """
        s = torch.randn(2, 4, requires_grad=True); pad = torch.tensor([[0, 0, 1, 0], [0, 1, 1, 0]]).bool()
        s2 = s.masked_fill(pad, float("inf"))
        loss = torch.softmax(s2, -1).pow(2).sum()  #!
        loss.backward()
    """,
    "label smoothing over forbidden classes": """
        net = nn.Linear(8, 5); allowed = torch.tensor([True, True, True, True, False])
        logits = net(torch.randn(4, 8)).masked_fill(~allowed, float("-inf"))  #!
        loss = F.cross_entropy(logits, torch.tensor([0, 1, 2, 3]), label_smoothing=0.1); loss.backward()
    """,
    "a label that the mask forbids": """
        net = nn.Linear(8, 5)
        mask = torch.zeros(5).masked_fill(torch.tensor([False] * 4 + [True]), float("-inf"))  #!
        loss = F.cross_entropy(net(torch.randn(4, 8)) + mask, torch.tensor([0, 1, 2, 4])); loss.backward()
    """,
    "divergence from a uniform policy over legal and illegal moves": """
        net = nn.Linear(8, 5); illegal = torch.tensor([False, False, True, False, True])
        logp = net(torch.randn(4, 8)).masked_fill(illegal, -torch.inf).log_softmax(-1)  #!
        loss = F.kl_div(logp, torch.full((4, 5), 0.2), reduction="batchmean"); loss.backward()
    """,
    "a mask value that float16 does not have": """
        s = torch.randn(2, 4).half()
        out = torch.softmax(s.masked_fill(torch.tensor([True, False, False, True]), -1e9), -1)  #!
    """,
    "minus a billion cast to half": """
        s = torch.randn(2, 4, requires_grad=True); allow = torch.zeros(2, 4).bool()
        mask = torch.zeros(2, 4).masked_fill(~allow, -1e9); mask[0, 0] = 0.0
        m16 = mask.half()  #!
        loss = torch.softmax(s.half() + m16, -1).float().sum(); loss.backward()
    """,
}

INF_TIMES_ZERO = {
    "log times mask": """
        p = torch.tensor([0.0, 0.5, 1.0], requires_grad=True); mask = torch.tensor([0.0, 1.0, 1.0])
        loss = -(torch.log(p) * mask).sum()  #!
        loss.backward()
    """,
    "infinite padding in a product with weights": """
        x = torch.tensor([[1.0, 2.0, math.inf]]); m = torch.tensor([[1.0, 1.0, 0.0]]); w = nn.Linear(3, 1)
        loss = w(x * m).sum()  #!
        loss.backward()
    """,
    "infinite depth outside of the mask": """
        depth = 1.0 / torch.tensor([0.0, 0.5, 2.0]); valid = torch.tensor([0, 1, 1])
        pred = torch.ones(3, requires_grad=True)
        loss = ((pred - depth).abs() * valid).sum()  #!
        loss.backward()
    """,
}

CTC_INFEASIBLE = {
    "fewer frames than labels": """
        lp = torch.randn(3, 2, 6, requires_grad=True).log_softmax(-1)
        y = torch.tensor([[1, 2, 3, 4], [1, 2, 3, 4]])
        loss = F.ctc_loss(lp, y, torch.tensor([3, 3]), torch.tensor([4, 2]))  #!
        loss.backward()
    """,
    "short input length after striding": """
        lp = torch.randn(8, 1, 6, requires_grad=True).log_softmax(-1)
        crit = nn.CTCLoss(reduction="sum")
        loss = crit(lp, torch.tensor([[1, 1, 1]]), torch.tensor([4]), torch.tensor([3]))  #!
        loss.backward()
    """,
    "concatenated targets": """
        lp = torch.randn(4, 2, 6, requires_grad=True).log_softmax(-1)
        loss = F.ctc_loss(lp, torch.tensor([1, 2, 3, 3, 3]), torch.tensor([4, 4]), torch.tensor([2, 3]))  #!
        loss.backward()
    """,
}

TABLES = {
    "EMPTY_REDUCTION": EMPTY_REDUCTION,
    "TOO_FEW_SAMPLES": TOO_FEW_SAMPLES,
    "ATTN_FULLY_MASKED": ATTN_FULLY_MASKED,
    "MASK_VALUE": MASK_VALUE,
    "INF_TIMES_ZERO": INF_TIMES_ZERO,
    "CTC_INFEASIBLE": CTC_INFEASIBLE,
}
SNIPPETS = [
    pytest.param(cause, source, id=f"{cause}: {name}")
    for cause, table in TABLES.items()
    for name, source in table.items()
]


@pytest.mark.parametrize(("cause", "source"), SNIPPETS)
def test_the_cause_comes_first_at_the_line_of_birth(cause: str, source: str, tmp_path: Path) -> None:
    result = explained(source, tmp_path)
    if cause == "INF_TIMES_ZERO":  # what made the infinity may come first, at its own line
        assert cause in result.causes[:2], str(result)
    else:
        assert result.causes[:1] == [cause], str(result)
    assert result.findings[0].line in result.marked, str(result)
