# causes: LINALG_DEGENERATE
# exit: 1
import torch

torch.manual_seed(0)
x = torch.randn(3, 6, requires_grad=True)
covariance = x.T @ x
factor = torch.linalg.cholesky(covariance)  # birth
factor.diagonal().log().sum().backward()
