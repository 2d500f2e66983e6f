"""What AWS answers to a repeated removal of what is gone already, where moto answers something
else. A client that lost the first answer takes only these words for done. Pure.

Found by destroying the stack with every first answer lost: Terraform's AWS provider repeats the
call, and stopped half-way at each of these.
"""

import uuid
from collections.abc import Mapping

from cloud.local.http_server import Answer
from cloud.local.mock_answers import XML_NAMESPACE, refusal


def of_the_gone(form: Mapping[str, str], answer: Answer) -> Answer:
    """The answer to the request `form`; moto's own where AWS answers the same."""
    if answer.ok:
        return answer
    match form.get("Action"):
        case "DeleteLaunchTemplate" if "LaunchTemplateId" in form and b"NotFound" in answer.body:
            # moto says that its name is not known, whatever the request named it by.
            return refusal(
                "InvalidLaunchTemplateId.NotFound",
                f"The specified launch template, with template ID {form['LaunchTemplateId']}, "
                "does not exist.",
            )
        case "DeleteLaunchTemplate" if "LaunchTemplateName" in form:
            # moto says that the request has no name.
            return refusal(
                "InvalidLaunchTemplateName.NotFoundException",
                "The specified launch template, with template name "
                f"{form['LaunchTemplateName']}, does not exist.",
            )
        case "DeleteVpcEndpoints" if b"InvalidRoute.NotFound" in answer.body:
            # moto deletes the endpoint's routes a second time.
            return _endpoints_gone()
    return answer


def _endpoints_gone() -> Answer:
    body = (
        f'<DeleteVpcEndpointsResponse xmlns="{XML_NAMESPACE}"><requestId>{uuid.uuid4()}'
        "</requestId><unsuccessful/></DeleteVpcEndpointsResponse>"
    )
    return Answer(status="200 OK", headers=(("Content-Type", "text/xml"),), body=body.encode())


def no_such_entity(message: str) -> Answer:
    """What IAM answers for what does not exist."""
    body = (
        '<ErrorResponse xmlns="https://iam.amazonaws.com/doc/2010-05-08/"><Error>'
        f"<Type>Sender</Type><Code>NoSuchEntity</Code><Message>{message}</Message></Error>"
        f"<RequestId>{uuid.uuid4()}</RequestId></ErrorResponse>"
    )
    headers = (("Content-Type", "text/xml"),)
    return Answer(status="404 Refused", headers=headers, body=body.encode())
