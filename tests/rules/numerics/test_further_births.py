"""Further births, one per line, from all families of causes: traced snippets, explained by the rules."""

from __future__ import annotations

from pathlib import Path

import pytest

from rules.traced import explained

SNIPPETS = [
    pytest.param(
        "LOG_DOMAIN",
        """
        logits = torch.tensor([0.0, -200.0, 1.0, 2.0], requires_grad=True)
        p = torch.softmax(torch.randn(4), 0); q = torch.softmax(logits, 0)
        loss = (p * (p / q).log()).sum()  #!
        loss.backward()
        """,
        id="LOG_DOMAIN: kl by ratio",
    ),
    pytest.param(
        "LOG_DOMAIN",
        """
        net = nn.Linear(4, 1)
        loss = F.binary_cross_entropy(net(torch.randn(8, 4)), torch.ones(8, 1))  #!
        """,
        id="LOG_DOMAIN: bce of raw outputs",
    ),
    pytest.param(
        "LOG_DOMAIN",
        """
        s = torch.zeros(2, 5); net = nn.Linear(5, 1)
        loss = net(torch.log10(s)).sum()  #!
        loss.backward()
        """,
        id="LOG_DOMAIN: silent spectrogram",
    ),
    pytest.param(
        "LOG_DOMAIN",
        """
        x = torch.zeros(3, requires_grad=True)
        loss = torch.log(torch.exp(x) - 1).sum()  #!
        loss.backward()
        """,
        id="LOG_DOMAIN: inverse softplus",
    ),
    pytest.param(
        "EXP_OVERFLOW",
        """
        x = torch.tensor([200.0, 1.0], requires_grad=True)
        loss = (2 ** x).sum()  #!
        loss.backward()
        """,
        id="EXP_OVERFLOW: two to the x",
    ),
    pytest.param(
        "EXP_OVERFLOW",
        """
        c = torch.rand(3, 3, requires_grad=True) * 100 + 50
        k = torch.exp(-c / 0.1)
        u = torch.ones(3) / (k @ torch.ones(3))  #!
        loss = u.sum(); loss.backward()
        """,
        id="EXP_OVERFLOW: sinkhorn underflow",
    ),
    pytest.param(
        "EMPTY_REDUCTION",
        """
        p = torch.randn(4, requires_grad=True); m = torch.zeros(4).bool()
        loss = F.mse_loss(p[m], torch.zeros(0))  #!
        loss.backward()
        """,
        id="EMPTY_REDUCTION: mse of nothing",
    ),
    pytest.param(
        "EMPTY_REDUCTION",
        """
        p = torch.randn(4, requires_grad=True); m = torch.zeros(4).bool()
        loss = F.smooth_l1_loss(p[m], torch.zeros(4)[m])  #!
        loss.backward()
        """,
        id="EMPTY_REDUCTION: smooth l1 of nothing",
    ),
    pytest.param(
        "EMPTY_REDUCTION",
        """
        w = torch.tensor([0.0, 0.0, 1.0])
        loss = F.cross_entropy(torch.randn(4, 3, requires_grad=True), torch.tensor([0, 1, 0, 1]), weight=w)  #!
        loss.backward()
        """,
        id="EMPTY_REDUCTION: class weights all zero",
    ),
    pytest.param(
        "EMPTY_REDUCTION",
        """
        x = torch.randn(4, requires_grad=True)
        loss = x[x > 100].max()  #!
        """,
        id="EMPTY_REDUCTION: max of nothing",
    ),
    pytest.param(
        "EMPTY_REDUCTION",
        """
        loss = torch.stack([]).mean()  #!
        """,
        id="EMPTY_REDUCTION: stack of nothing",
    ),
    pytest.param(
        "EMPTY_REDUCTION",
        """
        total = torch.zeros((), requires_grad=True); n = 0
        loss = total / n  #!
        loss.backward()
        """,
        id="EMPTY_REDUCTION: python count",
    ),
    pytest.param(
        "TOO_FEW_SAMPLES",
        """
        loss = nn.InstanceNorm2d(3)(torch.randn(2, 3, 1, 1)).sum()  #!
        """,
        id="TOO_FEW_SAMPLES: instance norm",
    ),
    pytest.param(
        "TOO_FEW_SAMPLES",
        """
        x = torch.randn(1, 4, requires_grad=True)
        loss = ((x - x.mean(0)) ** 2).sum() / (x.shape[0] - 1)  #!
        loss.backward()
        """,
        id="TOO_FEW_SAMPLES: unbiased by hand",
    ),
    pytest.param(
        "NORMALIZE_ZERO_VECTOR",
        """
        lin = nn.utils.parametrizations.weight_norm(nn.Linear(4, 2)); lin.parametrizations.weight.original1.data.zero_()
        loss = lin(torch.randn(3, 4)).sum()  #!
        loss.backward()
        """,
        id="NORMALIZE_ZERO_VECTOR: weight norm",
    ),
    pytest.param(
        "NORMALIZE_ZERO_VECTOR",
        """
        x = torch.zeros(2, 8, requires_grad=True)
        y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-20)  #!
        loss = y.sum(); loss.backward()
        """,
        id="NORMALIZE_ZERO_VECTOR: rms norm with tiny eps",
    ),
    pytest.param(
        "NORMALIZE_ZERO_VECTOR",
        """
        x = torch.ones(2, 8, requires_grad=True)
        loss = F.layer_norm(x, (8,), eps=0.0).sum()  #!
        loss.backward()
        """,
        id="NORMALIZE_ZERO_VECTOR: layer norm without eps",
    ),
    pytest.param(
        "NORMALIZE_ZERO_VECTOR",
        """
        a = torch.zeros(2, 4, requires_grad=True); b = torch.randn(2, 4)
        loss = ((a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1))).sum()  #!
        loss.backward()
        """,
        id="NORMALIZE_ZERO_VECTOR: cosine by hand",
    ),
    pytest.param(
        "DIST_PARAM",
        """
        loss = torch.bernoulli(torch.tensor([1.5, 0.2]))  #!
        """,
        id="DIST_PARAM: bernoulli above one",
    ),
    pytest.param(
        "DIST_PARAM",
        """
        loss = torch.multinomial(torch.tensor([0.5, -0.2, 0.7]), 1)  #!
        """,
        id="DIST_PARAM: multinomial of negatives",
    ),
    pytest.param(
        "DIST_PARAM",
        """
        loss = torch.normal(torch.zeros(2), torch.tensor([-1.0, 1.0]))  #!
        """,
        id="DIST_PARAM: normal std negative",
    ),
    pytest.param(
        "DIST_PARAM",
        """
        a = F.relu(torch.tensor([-1.0, 1.0], requires_grad=True))
        d = torch.distributions.Beta(a, torch.ones(2), validate_args=False)
        loss = -d.log_prob(torch.tensor([0.5, 0.5])).mean()  #!
        loss.backward()
        """,
        id="DIST_PARAM: beta at zero",
    ),
    pytest.param(
        "DIST_PARAM",
        """
        s = torch.exp(torch.tensor([-200.0, 0.0], requires_grad=True))
        d = torch.distributions.Laplace(torch.zeros(2), s, validate_args=False)
        loss = -d.log_prob(torch.tensor([0.5, 0.5])).mean()  #!
        loss.backward()
        """,
        id="DIST_PARAM: laplace scale",
    ),
    pytest.param(
        "SQRT_POW_GRAD_AT_ZERO",
        """
        a = torch.zeros(2, requires_grad=True); b = torch.zeros(2)
        loss = torch.hypot(a, b).sum()  #!
        loss.backward()
        """,
        id="SQRT_POW_GRAD_AT_ZERO: hypot",
    ),
    pytest.param(
        "SQRT_POW_GRAD_AT_ZERO",
        """
        p = torch.sigmoid(torch.tensor([120.0, 0.0], requires_grad=True))
        loss = ((1 - p) ** 0.5 * 2).mean()  #!
        loss.backward()
        """,
        id="SQRT_POW_GRAD_AT_ZERO: focal with gamma below one",
    ),
    pytest.param(
        "SQRT_POW_GRAD_AT_ZERO",
        """
        a = torch.ones(4, requires_grad=True); b = torch.ones(4)
        loss = torch.sqrt((a - b) ** 2).mean()  #!
        loss.backward()
        """,
        id="SQRT_POW_GRAD_AT_ZERO: charbonnier without eps",
    ),
    pytest.param(
        "INVTRIG_BOUNDARY",
        """
        R = torch.eye(3).requires_grad_()
        cos = ((R @ torch.eye(3)).diagonal().sum() - 1) / 2
        loss = torch.acos(cos)  #!
        loss.backward()
        """,
        id="INVTRIG_BOUNDARY: geodesic loss",
    ),
    pytest.param(
        "INVTRIG_BOUNDARY",
        """
        x = torch.ones(2, requires_grad=True)
        loss = torch.acosh(x).sum()  #!
        loss.backward()
        """,
        id="INVTRIG_BOUNDARY: poincare",
    ),
    pytest.param(
        "INVTRIG_BOUNDARY",
        """
        w = F.normalize(torch.tensor([[1.0, 0.0]]), dim=1); x = torch.tensor([[2.0, 0.0]], requires_grad=True)
        c = F.linear(F.normalize(x), w)
        loss = torch.cos(torch.acos(c) + 0.5).sum()  #!
        loss.backward()
        """,
        id="INVTRIG_BOUNDARY: arcface",
    ),
    pytest.param(
        "LINALG_DEGENERATE",
        """
        x = torch.zeros(3, 3, requires_grad=True)
        u, s, v = torch.svd(x)  #!
        loss = s.sum() + (u * v).sum(); loss.backward()
        """,
        id="LINALG_DEGENERATE: nuclear norm",
    ),
    pytest.param(
        "LINALG_DEGENERATE",
        """
        a = torch.ones(2, 2, requires_grad=True)
        loss = torch.linalg.solve(a, torch.ones(2)).sum()  #!
        """,
        id="LINALG_DEGENERATE: solve",
    ),
    pytest.param(
        "LINALG_DEGENERATE",
        """
        a = torch.zeros(3, 2, requires_grad=True)
        q, r = torch.linalg.qr(a)  #!
        loss = q.sum() + r.sum(); loss.backward()
        """,
        id="LINALG_DEGENERATE: qr of rank deficient",
    ),
    pytest.param(
        "WHERE_UNSAFE_BRANCH",
        """
        x = torch.zeros(2, 3, requires_grad=True); n = x.pow(2).sum(1)
        loss = torch.where(n > 0, n.sqrt(), torch.zeros(2)).sum()  #!
        loss.backward()
        """,
        id="WHERE_UNSAFE_BRANCH: safe norm",
    ),
    pytest.param(
        "WHERE_UNSAFE_BRANCH",
        """
        x = torch.tensor([0.0, 1.0], requires_grad=True)
        loss = torch.where(x == 0, torch.ones(2), torch.sin(x) / x).sum()  #!
        loss.backward()
        """,
        id="WHERE_UNSAFE_BRANCH: sinc",
    ),
    pytest.param(
        "WHERE_UNSAFE_BRANCH",
        """
        x = torch.tensor([0.0, 2.0], requires_grad=True)
        y = torch.log(x)  #!
        y = torch.where(torch.isinf(y), torch.zeros_like(y), y)
        loss = y.sum(); loss.backward()
        """,
        id="WHERE_UNSAFE_BRANCH: masked log assignment",
    ),
    pytest.param(
        "WHERE_UNSAFE_BRANCH",
        """
        x = torch.tensor([0.0, 2.0], requires_grad=True); z = torch.tensor([0.0, 1.0])
        loss = torch.nanmean(x * x / (x * z))  #!
        loss.backward()
        """,
        id="WHERE_UNSAFE_BRANCH: nanmean",
    ),
    pytest.param(
        "FP16_OVERFLOW",
        """
        x = (torch.randn(64) * 400).half().requires_grad_()
        loss = (x - x.mean()).pow(2).sum()  #!
        loss.backward()
        """,
        id="FP16_OVERFLOW: variance in half",
    ),
    pytest.param(
        "FP16_OVERFLOW",
        """
        net = nn.Linear(512, 4).half(); net.weight.data.fill_(1.0)
        loss = net(torch.full((2, 512), 200.0).half()).float().sum()  #!
        loss.backward()
        """,
        id="FP16_OVERFLOW: linear in half",
    ),
    pytest.param(
        "FP16_OVERFLOW",
        """
        g = torch.full((4,), 300.0).half(); v = torch.zeros(4).half()
        v.mul_(0.99).add_(g * g, alpha=1.0)  #!
        out = v
        """,
        id="FP16_OVERFLOW: ema of squares in half",
    ),
    pytest.param(
        "EXP_OVERFLOW",
        """
        x = torch.tensor([12.0, 1.0]).half().requires_grad_()
        loss = torch.exp(x).sum()  #!
        loss.backward()
        """,
        id="EXP_OVERFLOW: exp in half",
    ),
    pytest.param(
        "EPS_UNDERFLOW",
        """
        x = torch.ones(8, 4).half().requires_grad_()
        y = (x - x.mean(0)) / torch.sqrt(x.var(0) + 1e-8)  #!
        loss = y.sum(); loss.backward()
        """,
        id="EPS_UNDERFLOW: batch statistics by hand in half",
    ),
    pytest.param(
        "MASK_VALUE",
        """
        bias = torch.full((4, 4), -6e4).half(); pad = torch.full((4, 4), -6e4).half(); q = torch.randn(4, 8).half()
        m = bias + pad  #!
        out = torch.softmax(q @ q.t() + m, -1)
        """,
        id="MASK_VALUE: alibi in half",
    ),
    pytest.param(
        "ATTN_FULLY_MASKED",
        """
        adj = torch.tensor([[1., 1, 0], [1, 1, 0], [0, 0, 0]]); e = torch.randn(3, 3, requires_grad=True)
        a = torch.softmax(torch.where(adj > 0, e, torch.tensor(-math.inf)), 1)  #!
        loss = a.pow(2).sum(); loss.backward()
        """,
        id="ATTN_FULLY_MASKED: graph attention of an isolated node",
    ),
    pytest.param(
        "CTC_INFEASIBLE",
        """
        lp = torch.randn(4, 1, 5, requires_grad=True).log_softmax(-1)
        loss = F.ctc_loss(lp, torch.tensor([[1, 2]]), torch.tensor([0]), torch.tensor([2]))  #!
        loss.backward()
        """,
        id="CTC_INFEASIBLE: zero frames",
    ),
    pytest.param(
        "DATA_NONFINITE",
        """
        y = torch.tensor([1.0, float('nan'), 3.0])  #!
        loss = F.mse_loss(nn.Linear(2, 1)(torch.randn(3, 2)).squeeze(1), y); loss.backward()
        """,
        id="DATA_NONFINITE: missing target",
    ),
    pytest.param(
        "PREPROC_ZERO_RANGE",
        """
        x = torch.full((1, 64), 3.0); net = nn.Linear(64, 1)
        lo, hi = torch.quantile(x, 0.05), torch.quantile(x, 0.95)
        loss = net((x - lo) / (hi - lo)).sum()  #!
        loss.backward()
        """,
        id="PREPROC_ZERO_RANGE: quantile scaling",
    ),
    pytest.param(
        "PREPROC_ZERO_RANGE",
        """
        r = torch.tensor([[1.0, 1.0, 1.0], [0.0, 1.0, 2.0]]); lp = torch.zeros(2, 3, requires_grad=True)
        adv = (r - r.mean(1, keepdim=True)) / r.std(1, keepdim=True)  #!
        loss = -(adv * lp.exp()).mean(); loss.backward()
        """,
        id="PREPROC_ZERO_RANGE: group rewards",
    ),
    pytest.param(
        "EMPTY_REDUCTION",
        """
        df = torch.tensor([3.0, 0.0, 1.0]); net = nn.Linear(3, 1)
        idf = torch.log(10 / df)  #!
        loss = net(torch.tensor([[1.0, 0.0, 2.0]]) * idf).sum(); loss.backward()
        """,
        id="EMPTY_REDUCTION: tf-idf of an absent word",
    ),
    pytest.param(
        "LABEL_INVALID",
        """
        b = torch.tensor([[2.0, 2.0, 2.0, 2.0]]); p = torch.tensor([[2.0, 2.0, 2.0, 2.0]], requires_grad=True)
        area = (b[:, 2] - b[:, 0]) * (b[:, 3] - b[:, 1])
        loss = (1 - torch.zeros(1) / area * p.sum()).sum()  #!
        loss.backward()
        """,
        id="LABEL_INVALID: box iou of a degenerate box",
    ),
]


@pytest.mark.parametrize(("cause", "source"), SNIPPETS)
def test_the_cause_comes_first_at_the_line_of_birth(cause: str, source: str, tmp_path: Path) -> None:
    result = explained(source, tmp_path)
    assert result.causes[:1] == [cause], str(result)
    assert result.findings[0].line in result.marked, str(result)
